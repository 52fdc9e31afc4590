"""Where an engine of the ledger listens by now."""

import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.dependencies import refuse_unseen
from installer.engines.observe import find_engines, locate, with_process
from installer.engines.startup import read_start
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.facts import EngineRow, EngineState, Record
from installer.model.options import Options, Places
from tests.host.servers import FakeSystemd, FakeUnit, serving
from tests.support.live import ASKED, SOCKET, UNIT, containerd, live

GONE = PurePosixPath("/old.sock")
ROW = EngineRow("containerd", GONE, UNIT, {})
HANGS = replace(containerd(), socket=GONE, silence="hangs")
STOPPED = replace(HANGS, stopped=True)
ELSEWHERE = replace(HANGS, pid=7, unit="other.service")


def told(path: PurePosixPath | None = SOCKET) -> Options:
    return Options(places={"containerd": Places(socket=path)})


@pytest.mark.parametrize(
    ("engine", "row", "options", "found"),
    [
        pytest.param(STOPPED, ROW, told(), False, id="one that answers is of another unit"),
        pytest.param(STOPPED, replace(ROW, unit=""), told(), False, id="of no unit"),
        pytest.param(HANGS, ROW, told(), False, id="one that only hangs"),
        pytest.param(ELSEWHERE, ROW, told(), False, id="another unit answers"),
    ],
)
def test_a_socket_of_another_unit_is_not_taken(
    tmp_path: Path, engine: EngineState, row: EngineRow, options: Options, *, found: bool
) -> None:
    with live(tmp_path) as node:
        there = locate(node.host, engine, row, options)

    assert (there.socket == SOCKET) == found


@pytest.mark.parametrize(
    ("unit", "stopped", "crashing"),
    [
        pytest.param(FakeUnit(active="inactive", sub="dead"), True, False, id="at rest"),
        pytest.param(FakeUnit(active="failed", sub="failed"), True, False, id="failed for good"),
        pytest.param(FakeUnit(active="activating", sub="auto-restart"), False, True, id="ends at each start"),
        pytest.param(FakeUnit(), False, False, id="on its way"),
    ],
)
def test_where_nobody_listens_the_unit_tells_whether_it_is_stopped(
    tmp_path: Path, unit: FakeUnit, *, stopped: bool, crashing: bool
) -> None:
    with live(tmp_path) as node:
        node.systemd.units[UNIT] = unit
        there = locate(node.host, STOPPED, ROW, Options())

    assert (there.stopped, there.crashing) == (stopped, crashing)


@pytest.mark.parametrize(
    ("held", "options", "asks"),
    [
        (Record(engines=(ROW,)), Options(), True),
        (Record(), Options(), False),
        (Record(engines=(ROW,)), told(GONE), False),
        (Record(engines=(replace(ROW, name="docker"),)), Options(), False),
    ],
)
def test_only_one_of_the_ledger_whose_socket_nobody_names_is_looked_for(
    tmp_path: Path, held: Record, options: Options, *, asks: bool
) -> None:
    with live(tmp_path) as node:
        node.systemd.units[UNIT] = FakeUnit(active="activating", sub="auto-restart")
        (found,) = find_engines(node.host, replace(options, engines=("containerd",)), held).engines

    assert found.stopped is not asks


def _bus(held: ExitStack, root: Path, units: dict[str, FakeUnit]) -> Host:
    (root / "run/dbus").mkdir(parents=True)
    held.enter_context(serving(root / "run/dbus/system_bus_socket", FakeSystemd(units)))
    return Host.under(PurePosixPath(root))


STAT = "61 (containerd) S 0 1 1 0 -1 4194560 24000 200000 100 900 300 100 500 200 20 0 1 0 12300 0\n"


@pytest.mark.parametrize(
    ("cmdline", "stat", "words"),
    [
        pytest.param("/usr/bin/containerd\0-l\0x\0", STAT, ("-l", "x"), id="its own"),
        pytest.param("", None, None, id="a thread of the kernel"),
        pytest.param(None, None, None, id="ended meanwhile"),
    ],
)
def test_a_process_that_is_not_seen_is_that_of_its_unit(
    tmp_path: Path, cmdline: str | None, stat: str | None, words: tuple[str, ...] | None
) -> None:
    (tmp_path / "proc/61").mkdir(parents=True)
    for name, text in (("comm", "containerd\n"), ("cmdline", cmdline), ("stat", stat)):
        if text is not None:
            (tmp_path / "proc/61" / name).write_text(text)
    with ExitStack() as held:
        host = _bus(held, tmp_path, {UNIT: FakeUnit()})
        found = read_start(host, containerd())

    assert (found.words if found else None) == words
    if found:
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        assert found.began_s == pytest.approx(booted_s + 123.0, abs=2)


@pytest.mark.parametrize(
    ("units", "unit"),
    [
        ({"k3s.service": FakeUnit()}, "k3s.service"),
        ({"k3s.service": FakeUnit(active="inactive")}, ""),
        ({}, ""),
    ],
)
def test_of_several_units_the_one_that_runs_is_an_engines(
    tmp_path: Path, units: dict[str, FakeUnit], unit: str
) -> None:
    row = ENGINES["k3s"]
    engine = EngineState("k3s", row.config, None, None, (), row.socket, row.units[0])
    with ExitStack() as held:
        host = _bus(held, tmp_path, units)

        def unit_of(engine: EngineState) -> str:
            return with_process(host, engine, Places()).unit

        assert unit_of(replace(engine, silence="hangs")) == unit
        assert unit_of(replace(engine, stopped=True)) == row.units[0]
        assert unit_of(replace(engine, pid=7, unit="")) == ""
        assert unit_of(replace(engine, pid=7, unit="other.service")) == "other.service"


def test_a_runtime_that_an_engine_does_not_see_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "runtime"
    program.touch()
    us = replace(containerd(), pid=os.getpid())

    refuse_unseen(us, [PurePosixPath(program)])
    refuse_unseen(containerd(), [PurePosixPath("/gone/runtime")])  # nobody knows where it looks
    refuse_unseen(replace(us, pid=(1 << 22) + 1), [PurePosixPath("/gone/runtime")])
    with pytest.raises(
        Exception, match=rf"pid {os.getpid()} does not see \S*/gone/runtime: it has other mounts"
    ):
        refuse_unseen(us, [PurePosixPath(program), PurePosixPath("/gone/runtime")])
    with pytest.raises(InstallerError, match="does not see"):
        refuse_unseen(us, [PurePosixPath(tmp_path)])


@pytest.mark.parametrize(
    ("active", "pid", "held", "asked"),
    [
        pytest.param("active", 61, True, True, id="its process holds it"),
        pytest.param("active", 61, False, False, id="another process holds it"),
        pytest.param("active", 0, True, False, id="no process"),
        pytest.param("failed", 61, True, False, id="not active"),
    ],
)
def test_what_the_process_of_its_unit_listens_on_is_asked(
    tmp_path: Path, active: str, pid: int, *, held: bool, asked: bool
) -> None:
    (tmp_path / "proc/61/fd").mkdir(parents=True)
    (tmp_path / "proc/61/net").mkdir()
    (tmp_path / "proc/61/fd/3").symlink_to("socket:[99]" if held else "socket:[98]")
    # As the kernel's net/unix/af_unix.c writes it.
    (tmp_path / "proc/61/net/unix").write_text(
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        f"0000000000000000: 00000002 00000000 00010000 0001 01 99 {SOCKET}\n"
    )
    with live(tmp_path) as node:
        node.unit.active, node.unit.main_pid = active, pid
        locate(node.host, STOPPED, ROW, Options())

    assert (ASKED in node.asked) == asked


def test_the_nri_socket_of_its_unit_is_never_asked(tmp_path: Path) -> None:
    (tmp_path / "proc/61/fd").mkdir(parents=True)
    (tmp_path / "proc/61/net").mkdir()
    (tmp_path / "proc/61/fd/3").symlink_to("socket:[99]")
    (tmp_path / "proc/61/net/unix").write_text(
        "Num\n0000: 00000002 00000000 00010000 0001 01 99 /run/nri/nri.sock\n"
    )
    (tmp_path / "run/nri").mkdir(parents=True)
    directory = os.open(tmp_path / "run/nri", os.O_PATH)
    with live(tmp_path) as node, socket.socket(socket.AF_UNIX) as server:
        node.unit.active, node.unit.main_pid = "active", 61
        server.bind(f"/proc/self/fd/{directory}/nri.sock")
        server.listen()
        server.settimeout(0)

        locate(node.host, STOPPED, ROW, Options())

        with pytest.raises(BlockingIOError):
            server.accept()
    os.close(directory)
