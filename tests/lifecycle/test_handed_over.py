"""The runtime that ours hand over to, and the files that are watched of an install."""

import os
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.containers import find_low_level_runtime, find_substitute_runtime
from installer.host.files import Host
from installer.lifecycle.check import keep_live, process_of
from installer.lifecycle.check import list_places as places
from installer.lifecycle.readiness import LastCheck
from installer.model.facts import CdiRow, ConfigRow, EngineRow, EngineState, Record, ToolkitRow
from installer.model.files import Layout
from installer.model.options import Options
from tests.support.files import put

LAYOUT = Layout()
NAMES = '[nvidia-container-runtime]\nruntimes = ["crun", "/opt/runc"]\n'
ROW = ToolkitRow("1", None, NAMES)
HELD = Record(toolkit=ROW)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.under(PurePosixPath(tmp_path))


@pytest.mark.parametrize(
    ("files", "config", "held", "found"),
    [
        pytest.param(["/usr/bin/crun", "/opt/runc"], None, HELD, "/usr/bin/crun", id="by a word"),
        pytest.param(["/opt/runc"], None, HELD, "/opt/runc", id="by a path"),
        pytest.param(["/usr/bin/runc"], "", HELD, "/usr/bin/runc", id="where it names none, the usual"),
        pytest.param(["/opt/runc"], "= no TOML", HELD, "/opt/runc", id="as it was written, of no TOML"),
        pytest.param(["/opt/runc"], None, replace(HELD, cdi=CdiRow(())), None, id="of CDI alone"),
        pytest.param(["/opt/runc"], None, Record(), None, id="without a toolkit"),
    ],
)
def test_what_our_runtimes_hand_over_to(
    tmp_path: Path, files: list[str], config: str | None, held: Record, found: str | None
) -> None:
    put(tmp_path, dict.fromkeys(files, "x"), 0o755)
    if config is not None:
        put(tmp_path, {LAYOUT.config: config})

    there = find_low_level_runtime(Host.under(PurePosixPath(tmp_path)), LAYOUT, held)

    assert (str(there) if there else None) == found


@pytest.mark.parametrize("spoil", ["empty", "not executable", "a directory", "gone"])
def test_what_cannot_be_started_is_none(tmp_path: Path, host: Host, spoil: str) -> None:
    put(
        tmp_path,
        {"/opt/runc": "" if spoil == "empty" else "x"},
        0o644 if spoil == "not executable" else 0o755,
    )
    if spoil in {"a directory", "gone"}:
        (tmp_path / "opt/runc").unlink()
    if spoil == "a directory":
        (tmp_path / "opt/runc").mkdir()

    assert find_low_level_runtime(host, LAYOUT, HELD) is None


def test_a_low_level_runtime_is_the_one_that_was_told_then_a_usual_one(tmp_path: Path, host: Host) -> None:
    assert find_substitute_runtime(host, HELD) is None
    put(tmp_path, {"/usr/sbin/runc": "x"}, 0o755)
    assert find_substitute_runtime(host, HELD) == PurePosixPath("/usr/sbin/runc")
    put(tmp_path, {"/opt/runc": "x"}, 0o755)
    assert find_substitute_runtime(host, HELD) == PurePosixPath("/opt/runc")
    assert find_substitute_runtime(host, Record()) == PurePosixPath("/usr/sbin/runc")


DOCKER = EngineRow("docker", PurePosixPath("/d.sock"), "docker.service", {})
CONFIG = ConfigRow("docker", PurePosixPath("/etc/docker/daemon.json"), None, None, (), ())


def test_what_is_watched(tmp_path: Path, host: Host) -> None:
    held = replace(HELD, engines=(DOCKER,), configs=(CONFIG,))

    found = {path.removeprefix(str(tmp_path)) for path in places(host, Options(), held, LastCheck())}

    assert found >= {
        "/etc/docker/daemon.json",
        "/etc/docker/",
        "/etc/docker/conf.d/",
        str(LAYOUT.toolkit),
        str(LAYOUT.config),
        str(LAYOUT.ledger),
        f"{LAYOUT.version('1')}/",
        "/d.sock",
    }
    without = {path.removeprefix(str(tmp_path)) for path in places(host, Options(), Record(), LastCheck())}
    assert without.isdisjoint({"/etc/docker/daemon.json", f"{LAYOUT.version('1')}/", "/d.sock"})
    more = {*places(host, Options(), held, LastCheck(hands_over_to="/usr/bin/runc"))}
    assert {path.removeprefix(str(tmp_path)) for path in more} - found == {"/usr/bin/runc"}


def test_a_process_is_that_of_the_engine_and_one_that_has_ended_is_not_watched(host: Host) -> None:
    row = ENGINES["docker"]
    engine = EngineState("docker", row.config, None, None, (), row.socket, row.unit, pid=7)

    assert process_of(host, engine) == "/proc/7"
    assert process_of(host, replace(engine, pid=None)) == ""
    assert keep_live(f"/proc/{os.getpid()}") == f"/proc/{os.getpid()}"
    assert keep_live(f"/proc/{(1 << 22) + 1}") == ""
    assert keep_live("") == ""
