"""What keeps an engine that answers from starting a container: each from how a real one was seen to fail."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines import dependencies as below
from installer.engines.dependencies import Dependencies as Below
from installer.engines.dependencies import is_suse, served_by_image
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.engine import EngineState, Started
from tests.host.servers import answer, hang, serving
from tests.support.files import put

TOOLKIT = PurePosixPath("/usr/local/nvidia/toolkit")
SHIM = "usr/bin/containerd-shim-runc-v2"
SOCKET = "run/containerd/containerd.sock"
OWN, ELSEWHERE = "var/run/docker/containerd/containerd.sock", "e/containerd/containerd.sock"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # what each containerd says first (RFC 9113, 6.5)


def _engine(name: str, **more: Any) -> EngineState:
    place = PurePosixPath("/etc", "daemon.json" if name == "docker" else "config.toml")
    usual = EngineState.usual(ENGINES[name])
    return replace(usual, config=place, **{"serving": EffectiveConfig({}, "runc")} | more)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(below, "ASK_S", 1.0)
    # The tests' own programs are no place for a node's.
    monkeypatch.setattr(below, "read_start", lambda *_: Started(environment={"PATH": "/usr/bin"}))


@contextmanager
def _listens(path: Path, behave: Callable[[socket.socket], None]) -> Iterator[None]:
    """Have a containerd accept connections meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with serving(path, behave):
        yield
    path.unlink()


def _program(root: Path, name: str) -> Path:
    put(root, {name: "#!/bin/sh\n"}, 0o755)
    return root / name


NOTHING = Below()


def _found(root: Path, engine: EngineState, before: Below = NOTHING) -> Below:
    return below.find_dependencies(Host.under(PurePosixPath(root)), engine, TOOLKIT, before)


def _why(root: Path, engine: EngineState, before: Below = NOTHING) -> str:
    with pytest.raises(InstallerError) as raised:
        _found(root, engine, before)
    return str(raised.value)


def test_the_containerd_below_docker_that_hangs_or_has_ended_is_told(tmp_path: Path) -> None:
    engine = _engine("docker")
    _program(tmp_path, SHIM)
    with _listens(tmp_path / SOCKET, answer(SETTINGS)):
        found = _found(tmp_path, engine)
    with _listens(tmp_path / SOCKET, hang):
        hangs = _why(tmp_path, engine)
    ended = _why(tmp_path, engine, found)

    assert found == Below(f"/{SOCKET}", f"/{SHIM}")
    assert "cannot start containers with Docker (its containerd hangs: no answer within 1 s" in hangs
    assert "its containerd does not run: nothing answers on /run/containerd/containerd.sock" in ended
    assert ended.endswith(below.RESTART)


def test_a_shim_that_is_no_program_any_more_is_told(tmp_path: Path) -> None:
    shim, engine = _program(tmp_path, SHIM), _engine("containerd")
    found = _found(tmp_path, engine)
    shim.chmod(0o644)
    told = [_why(tmp_path, engine, found)]
    shim.chmod(0o755)
    shim.write_text("")
    told.append(_why(tmp_path, engine, found))
    shim.unlink()

    for each in (*told, _why(tmp_path, engine, found)):
        assert f"(/{SHIM}, which holds each container, is missing or not executable)" in each


def test_a_shim_that_was_never_seen_is_not_missed_and_is_found_where_containerd_looks(tmp_path: Path) -> None:
    """``runtime_path`` of a config may lead anywhere."""
    engine = _engine("containerd", version=(1, 6, 20), exe=PurePosixPath("/opt/bin/containerd"))

    assert _found(tmp_path, engine) == Below()
    for place in (below.OPT, PurePosixPath("/opt/bin")):
        shim = _program(tmp_path, f"{str(place)[1:]}/containerd-shim-runc-v2")
        for before in (Below(), Below(monitor=f"/{SHIM}")):
            assert _found(tmp_path, engine, before).monitor == f"{place}/containerd-shim-runc-v2"
        shim.unlink()


@pytest.mark.parametrize("word", ["runtimePath", "runtimeType"])
def test_a_shim_that_a_runtime_names_by_its_path_is_the_one_that_counts_for_it(
    tmp_path: Path, word: str
) -> None:
    """Docker takes a path as ``runtimeType``; containerd as well, and as ``runtime_path``."""
    shim, usual, before = _program(tmp_path, "opt/shim"), _program(tmp_path, SHIM), Below(monitor=f"/{SHIM}")
    by_path, ours = Runtime("", {word: "/opt/shim"}), Runtime(f"{TOOLKIT}/nvidia-container-runtime")
    alone = _engine("containerd", serving=EffectiveConfig({"runc": by_path}, "runc"))
    both = _engine("containerd", serving=EffectiveConfig({"runc": by_path, "nvidia": ours}, "runc"))

    assert _found(tmp_path, both, before).monitor == "/opt/shim"
    usual.unlink()
    moved = _found(tmp_path, alone, before)
    assert moved.monitor == "/opt/shim"
    assert "is missing or not executable" in _why(tmp_path, both, before)
    shim.unlink()
    assert "/opt/shim, which holds each container, is missing" in _why(tmp_path, alone, moved)


def test_the_conmon_that_cri_o_names_is_the_one_that_counts(tmp_path: Path) -> None:
    conmon = _program(tmp_path, "usr/libexec/crio/conmon")
    _program(tmp_path, "usr/bin/conmon")
    handler = Runtime("/usr/bin/crun", {"monitor_path": "/usr/libexec/crio/conmon"})
    engine = _engine("crio", serving=EffectiveConfig({"crun": handler}, "crun"))
    found = _found(tmp_path, engine)
    conmon.unlink()

    assert found == Below(monitor="/usr/libexec/crio/conmon")
    assert "(/usr/libexec/crio/conmon, which holds" in _why(tmp_path, engine, found)
    assert "(/usr/libexec/crio/conmon, which holds" in _why(tmp_path, engine), "also where it never was"


@pytest.mark.parametrize(
    ("words", "config", "there", "expected"),
    [
        pytest.param(("--containerd=/run/c/a.sock",), "{}", "run/c/x", "/run/c/a.sock", id="its flag"),
        pytest.param((), '{"containerd": "/run/c/b.sock"}', "run/c/x", "/run/c/b.sock", id="its config"),
        pytest.param((), "{", SOCKET, f"/{SOCKET}", id="the node's"),
        pytest.param((), "{}", OWN, f"/{OWN}", id="its own"),
        pytest.param(("--exec-root=/e",), "{}", ELSEWHERE, f"/{ELSEWHERE}", id="elsewhere"),
        pytest.param((), "{}", "run/x", None, id="none"),
    ],
)
def test_the_containerd_of_docker_is_where_dockerd_looks_for_it(
    tmp_path: Path, words: tuple[str, ...], config: str, there: str, expected: str | None
) -> None:
    host = put(tmp_path, {there: "", "etc/daemon.json": config})

    found = below.containerd_of(host, _engine("docker", started=Started(words)))

    assert found == (expected and PurePosixPath(expected))
    assert below.containerd_of(host, _engine("containerd")) is None


FULL = {"f_blocks": 1000, "f_bfree": 8, "f_bavail": 8, "f_frsize": 4096, "f_files": 0, "f_ffree": 0}
STATE, FILES = "where each container has its state", "where the files of containers are"


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ({}, True),  # 32 KiB: runc cannot store its state
        ({"f_blocks": 0, "f_bfree": 0}, False),  # no limit
        ({"f_bfree": 1000, "f_files": 900, "f_ffree": 6}, True),  # 6 inodes: no pipe for a shim
    ],
)
@pytest.mark.parametrize("place", ["/run/containerd", "/var/lib/containerd"])
def test_a_place_without_room_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, int], place: str, *, full: bool
) -> None:
    (tmp_path / place[1:]).mkdir(parents=True)
    statvfs, told = os.statvfs, SimpleNamespace(**FULL | said | {"f_flag": 0})
    monkeypatch.setattr(os, "statvfs", lambda path: told if str(path).endswith(place) else statvfs(path))
    state, engine = place.startswith("/run/"), _engine("containerd")

    crowded = [*below.list_crowded(Host.under(PurePosixPath(tmp_path)), ("containerd",))]

    assert crowded == ([PurePosixPath(place)] if full and state else [])
    if full:
        what = f"{place}, {STATE if state else FILES}"
        assert f"({what}, is full); make room there" in _why(tmp_path, engine)


@pytest.mark.parametrize(
    ("name", "config", "place"),
    [
        ("docker", '{"data-root": "/mnt/docker"}', "/mnt/docker"),
        ("docker", "{}", "/var/lib/containerd"),  # of the containerd below it
        ("containerd", 'root = "/mnt/containerd"', "/mnt/containerd"),
    ],
)
def test_a_place_that_is_mounted_read_only_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, config: str, place: str
) -> None:
    engine = _engine(name)
    put(tmp_path, {engine.config: config})
    (tmp_path / place[1:]).mkdir(parents=True)
    monkeypatch.setattr(Host, "mounted", lambda _, path: ("read-only",) if str(path) == place else ())

    with _listens(tmp_path / SOCKET, answer(SETTINGS)):
        assert f"{place}, {FILES}, is mounted read-only" in _why(tmp_path, engine)


@pytest.mark.parametrize(
    ("made", "place"),
    [
        pytest.param("sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup", id="one hierarchy"),
        pytest.param("sys/fs/cgroup/devices/tasks", "/sys/fs/cgroup/devices", id="a hierarchy each"),
    ],
)
def test_cgroups_that_are_mounted_read_only_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, place: str
) -> None:
    """The engine answers then, and no container starts: ``mkdir ...: read-only file system``."""
    put(tmp_path, {made: ""})
    engine = _engine("containerd", pid=os.getpid())
    read_only: set[str] = {place}
    monkeypatch.setattr(Host, "mounted", lambda _, path: ("read-only",) * (str(path) in read_only))

    assert f"{place}, where cgroups of containers are made, is mounted read-only" in _why(tmp_path, engine)
    _found(tmp_path, replace(engine, pid=None))
    read_only = {"/sys/fs/cgroup"} - {place}  # systemd mounts the directory of several hierarchies read-only
    _found(tmp_path, engine)


def test_an_engine_that_was_restarted_where_our_runtimes_are_not_seen_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unit may have ``TemporaryFileSystem=/usr/local`` by now: here it is a process with another root."""
    binary = f"{TOOLKIT}/nvidia-container-runtime"
    assert not Path(binary).exists()
    serving = EffectiveConfig({"nvidia": Runtime(binary)}, "runc")
    engine = _engine("containerd", serving=serving, pid=os.getpid())
    _found(tmp_path, engine)  # it is missing for all: no matter of a root
    put(tmp_path, {binary: ""})

    for mounted in ((), ("noexec",)):  # as systemd's InaccessiblePaths= mounts an empty directory over ours
        monkeypatch.setattr(Host, "mounted", lambda *_, words=mounted: words)
        assert f"pid {os.getpid()} does not see {binary}: it has other mounts" in _why(tmp_path, engine)


def test_a_toolkit_that_is_mounted_noexec_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "mounted", lambda *_: ("noexec",))

    assert "is mounted noexec, so none of its programs starts" in _why(tmp_path, _engine("containerd"))


def test_the_family_of_a_system(tmp_path: Path) -> None:
    for said, suse in (("no equals sign\n", False), ('ID="sles"\nID_LIKE="suse"\n', True)):
        host = put(tmp_path, {"etc/os-release": said})

        assert (is_suse(host), [*served_by_image(host)]) == (suse, [])
