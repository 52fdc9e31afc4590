"""How an engine was started, and will be: by its process, by systemd's words, by the host's own /proc."""

import shlex
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.observe import explain_moving, with_process, with_start
from installer.engines.startup import explain_overruling, find_place
from installer.errors import InstallerError
from installer.model.facts import EngineState, Started
from installer.model.options import Options, Places
from tests.host.servers import FakeSystemd, FakeUnit
from tests.support.files import put
from tests.support.live import UNIT_PROPERTIES, on_bus

CONTAINERD = EngineState.usual(ENGINES["containerd"])
VARIABLE = "CONTAINER_DEFAULT_RUNTIME"


@pytest.mark.parametrize(
    ("engine", "cmdline", "config", "state"),
    [
        ("containerd", "containerd --state /mnt/s", "", "/mnt/s"),
        ("containerd", "containerd", 'state = "/mnt/s"\n', "/mnt/s"),
        ("docker", "dockerd --exec-root=/mnt/d", "", "/mnt/d/containerd/daemon"),
    ],
)
def test_where_an_engine_keeps_its_state_is_told_by_flag_or_config(
    tmp_path: Path, engine: str, cmdline: str, config: str, state: str
) -> None:
    host = put(tmp_path, {"config.toml": config})

    found = find_place(host, ENGINES[engine].state, cmdline.split(), PurePosixPath("/config.toml"))

    assert str(found) == state


@pytest.mark.parametrize(
    ("engine", "cmdline", "default", "flag"),
    [
        ("docker", "dockerd --add-runtime=a=/b", False, "--add-runtime"),
        ("docker", "dockerd --default-runtime a", True, "--default-runtime"),
        ("docker", "dockerd --default-runtime a", False, ""),  # no default is asked for
        ("crio", f"crio {VARIABLE}=a", True, VARIABLE),
        ("crio", f"crio {VARIABLE}=nvidia", True, ""),  # it names ours
    ],
)
def test_a_flag_that_is_stronger_than_the_config_is_reported(
    engine: str, cmdline: str, flag: str, *, default: bool
) -> None:
    found = list(explain_overruling(ENGINES[engine], cmdline.split(), Options(set_as_default=default)))

    assert len(found) == bool(flag)
    assert all(flag in error.problem for error in found)


PID = 61


def systemd(**said: tuple[str, Any]) -> FakeSystemd:
    """Return a systemd whose unit has the process with that pid."""
    return FakeSystemd({CONTAINERD.unit: FakeUnit(main_pid=PID)}, changed=UNIT_PROPERTIES | said)


def command(*words: str) -> tuple[str, Any]:
    return "a(sasbttttuii)", [(words[0], [*words], False, 0, 0, 0, 0, 0, 0, 0)]


CMDLINE = "/usr/bin/containerd\0-l\0x\0"
STAT = "61 (containerd) S 0 1 1 0 -1 4194560 24000 200000 100 900 300 100 500 200 20 0 1 0 12300 0\n"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({"cmdline": CMDLINE, "stat": STAT}, ("-l", "x"), id="its own"),
        pytest.param({"comm": "sleep\n", "cmdline": "sleep\0-l\0x\0"}, None, id="another by that pid"),
        pytest.param({}, None, id="ended meanwhile"),
    ],
)
def test_a_process_that_is_not_seen_is_that_of_its_unit_in_the_hosts_proc(
    tmp_path: Path, files: dict[str, str], words: tuple[str, ...] | None
) -> None:
    environ = "PATH=/opt/bin\0NOTIFY_SOCKET=/run/systemd/notify\0"
    said = {"comm": "containerd\n", "environ": environ} | files
    put(tmp_path, {f"proc/{PID}/{name}": text for name, text in said.items()})

    fake = systemd(Environment=("as", ["LEVEL=warn"]))
    with on_bus(tmp_path, fake) as host:
        found = with_process(host, replace(CONTAINERD, exe=PurePosixPath("/gone")), Places())[0].started

    assert fake.calls.count("GetAll") == 1, "its unit is read once"
    assert (found.words if found else None) == words
    if found:
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        assert found.began_s == (pytest.approx(booted_s + 123.0, abs=2) if "stat" in files else None)
        environment = {"LEVEL": "warn"} if files.get("environ") == "" else {"PATH": "/opt/bin"}
        assert (found.program, found.environment) == ("/usr/bin/containerd", environment)


def test_a_word_of_an_environment_file_is_part_of_the_next_start(tmp_path: Path) -> None:
    put(tmp_path, {"etc/default": "# of the site\nWORDS='--root /srv/c'\n"})
    fake = systemd(
        ExecStart=command("/usr/bin/containerd", "$WORDS", "--log-level=${LEVEL}"),
        Environment=("as", ["LEVEL=warn"]),
        EnvironmentFiles=("a(sb)", [("/etc/default", False)]),
    )

    with on_bus(tmp_path, fake) as host:
        found = with_start(host, CONTAINERD)

    assert found.next_words == ("--root", "/srv/c", "--log-level=warn")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("/usr/bin/containerd --root /srv", ("--root", "/srv")),
        ("/usr/bin/nice -n 5 /usr/bin/containerd -a /x", ("-a", "/x")),
        ("/bin/sh -c 'exec /usr/bin/containerd --root /srv'", ()),
    ],
)
def test_the_words_of_the_next_start_are_those_behind_the_engines_program(
    tmp_path: Path, words: str, told: tuple[str, ...]
) -> None:
    with on_bus(tmp_path, systemd(ExecStart=command(*shlex.split(words)))) as host:
        assert with_start(host, CONTAINERD).next_words == told


MOVES = InstallerError("why", remedy="what", code="restart-moves-engine")
NOT_STARTED = InstallerError("why", remedy="what", code="unit-failed")
USUAL = "/etc/containerd/config.toml"


@pytest.mark.parametrize(
    ("now", "later", "why", "moves"),
    [
        (("-c", "/a"), ("-c", "/a"), None, None),
        (("-l", "x"), ("-c", "/b"), None, (USUAL, "/b")),
        (("-c", "/a"), ("-l", "x"), None, ("/a", USUAL)),
        (("-c", "/a"), (), None, None),
        (("-c", "/a"), ("-c", "/b"), MOVES, ()),
        (("-c", "/a"), ("-c", "/b"), NOT_STARTED, ("/a", "/b")),
    ],
)
def test_a_config_that_an_engine_reads_only_until_its_next_start_is_told(
    now: tuple[str, ...], later: tuple[str, ...], why: InstallerError | None, moves: tuple[str, ...] | None
) -> None:
    engine = replace(CONTAINERD, started=Started(now), next_start=Started(later), not_restarted=why)
    said = moves and "configure containerd in {} (at its next start containerd.service gives it {})".format(
        *moves
    )

    found = [error.problem for error in explain_moving(engine)]

    assert found == ([] if moves is None else [said or "why"])


def test_of_a_docker_that_does_not_answer_every_verb_tells_where_it_listens(tmp_path: Path) -> None:
    words = "/usr/bin/dockerd\0-H\0unix:///run/d.sock\0--host=tcp://10.0.0.7:2376\0"
    put(tmp_path, {f"proc/{PID}/comm": "dockerd\n", f"proc/{PID}/cmdline": words})
    docker = replace(CONTAINERD, name="docker", exe=PurePosixPath("/dockerd"), silence="no answer")

    with on_bus(tmp_path, systemd()) as host:
        found, _ = with_process(host, docker, Places())

    assert found.silence == "no answer; its -H is unix:///run/d.sock, tcp://10.0.0.7:2376"
