"""What doctor reads of engines that run: what they answer, and what their configs and units come to."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import dumps
from installer.engines import ENGINES
from installer.engines.observe import with_start
from installer.host.files import Host
from installer.host.processes import HostProcess
from installer.host.systemd import look_at_unit
from installer.model.facts import EngineRow, Record, Started
from installer.model.files import Layout
from installer.model.options import Options, Places
from installer.report.doctor.model import EngineExam
from installer.report.doctor.read import explain_next_start, read_engines, read_node
from tests.host.servers import answer, serving
from tests.support.files import put
from tests.support.live import SOCKET, UNIT, UNIT_PROPERTIES, Live, containerd, live

SEEN = HostProcess(7, "containerd", "/usr/bin/containerd", False, (), (1, 2), of_host=True)
CONFIG = PurePosixPath("/etc/containerd/config.toml")


def read(node: Live, *seen: HostProcess, socket: PurePosixPath = SOCKET) -> list[EngineExam]:
    places = {"containerd": Places(socket=socket)}
    return [*read_engines(node.host, Options(places=places), seen)]


def test_what_an_engine_answers_and_reads(tmp_path: Path) -> None:
    with live(tmp_path) as node:
        (found,) = read(node, SEEN)
        put(tmp_path, {CONFIG: "version = 2\n"})
        (well,) = read(node, SEEN)
        put(tmp_path, {CONFIG: "version = ["})
        (damaged,) = read(node, SEEN)

    assert (found.name, found.label, found.silence) == ("containerd", "containerd 1.7.24", "")
    assert found.serving is not None
    assert (found.config, found.another, found.has_hook) == (CONFIG, "", None)
    assert found.on_disk is not None
    assert [each.trees.get(CONFIG) for each in (found, well, damaged)] == [{}, {"version": 2}, None]
    assert [each.invalid == "" for each in (found, well, damaged)] == [True, True, False]


def test_an_engine_without_a_process_or_a_socket_is_not_asked(tmp_path: Path) -> None:
    """Nor one of two whose socket answers, where it is in no unit of theirs that does."""
    with live(tmp_path) as node:
        assert read(node) == []
        assert read(node, replace(SEEN, name="dockerd")) == []
        assert read(node, SEEN, socket=PurePosixPath("/gone.sock")) == []
        assert node.asked == []
        places = {name: Places(socket=SOCKET) for name in ("k3s", "rke2")}
        seen = [replace(SEEN, name=ENGINES["k3s"].process)]
        assert [*read_engines(node.host, Options(places=places), seen)] == []


def test_an_engine_whose_shim_is_in_none_of_its_places_starts_no_container(tmp_path: Path) -> None:
    """The process that answers is this one: so the PATH is that of the test."""
    put(tmp_path, {CONFIG: "version = 2\n"})
    place = tmp_path / os.environ["PATH"].split(":")[-1].lstrip("/")
    place.mkdir(parents=True)
    with live(tmp_path) as node:
        (lacking,) = read(node, SEEN)
        shutil.copy("/bin/true", place / "containerd-shim-runc-v2")
        (whole,) = read(node, SEEN)

    assert (
        "containerd-shim-runc-v2, which holds each container, is missing or not executable" in lacking.unable
    )
    assert lacking.unable.endswith("; install it again")
    assert whole.unable == ""


@pytest.mark.parametrize(
    ("words", "there", "said"),
    [
        (["/opt/containerd"], False, "its ExecStart /opt/containerd is no program"),
        (["/opt/containerd", "-c", "/etc/x.toml"], True, "gives it --config /etc/x.toml"),
        (["/opt/containerd"], True, ""),
    ],
    ids=["gone", "another config", "as it is"],
)
def test_a_start_that_fails_or_has_another_config_is_seen_before_anybody_restarts(
    tmp_path: Path, words: list[str], said: str, *, there: bool
) -> None:
    with live(tmp_path) as node:
        if there:
            (tmp_path / "opt").mkdir()
            shutil.copy("/bin/true", tmp_path / "opt/containerd")
        start = (words[0], words, False, 0, 0, 0, 0, 0, 0, 0)
        node.systemd.changed |= UNIT_PROPERTIES | {"ExecStart": ("a(sasbttttuii)", [start])}
        engine = with_start(node.host, replace(containerd(), started=Started(program="/opt/containerd")))

        found = explain_next_start(node.host, engine, look_at_unit(node.host, UNIT).start)

    assert said in found
    assert bool(found) == bool(said)


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Live]:
    """Yield a node whose containerd is in the ledger, and listens where no flag says."""
    record = Record(engines=(EngineRow("containerd", SOCKET, UNIT, {}),))
    put(tmp_path, {Layout().ledger: dumps(record).decode()})
    with live(tmp_path) as node:
        yield node


def test_an_engine_of_the_ledger_is_asked_where_it_listens(configured: Live, tmp_path: Path) -> None:
    status = "Name:\tcontainerd\nUid:\t0\t0\t0\t0\n"
    said = {"status": status, "cmdline": "containerd\0", "comm": "containerd\n"}
    put(tmp_path, {f"proc/7/{name}": text for name, text in said.items()})
    (tmp_path / "proc/7/exe").symlink_to("/usr/bin/containerd")

    found = read_node(configured.host, Options(places={"containerd": Places()}))

    assert [exam.socket for exam in found.engines] == [SOCKET]


def test_an_engine_whose_program_has_another_name_is_examined_where_its_unit_runs(configured: Live) -> None:
    runs = read_node(configured.host, Options())
    configured.unit.active, configured.unit.sub = "inactive", "dead"
    rests = read_node(configured.host, Options())

    assert [exam.name for exam in runs.engines] == ["containerd"]
    assert rests.engines == ()


# As dockerd 28.5.2 says it.
INFO = {
    "ServerVersion": "28.5.2",
    "Runtimes": {"runc": {"path": "runc"}},
    "DefaultRuntime": "runc",
    "LiveRestoreEnabled": True,
    "CgroupDriver": "systemd",
}


@pytest.mark.parametrize("hook", [True, False])
def test_what_docker_answers_and_whether_its_path_has_the_hook(tmp_path: Path, *, hook: bool) -> None:
    """The process that answers is this one: so the PATH is that of its start."""
    environment = Path("/proc/self/environ").read_text().split("\0")
    place = next(each for each in environment if each.startswith("PATH=")).rpartition(":")[2]
    if hook:
        put(tmp_path, {f"{place}/nvidia-container-runtime-hook": ""})

    said = b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(INFO).encode()
    options = Options(places={"docker": Places(socket=PurePosixPath("/d.sock"))})
    with serving(tmp_path / "d.sock", answer(said)):
        (found,) = read_engines(Host.under(PurePosixPath(tmp_path)), options, [replace(SEEN, name="dockerd")])

    assert (found.label, found.version) == ("docker 28.5.2", (28, 5, 2))
    assert found.has_hook == hook
    assert (found.served.live_restore, found.served.cgroup_driver) == (True, "systemd")
    assert found.config == ENGINES["docker"].config
