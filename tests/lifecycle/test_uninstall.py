"""How long runs wait for one another, who hands an undo over, and what an undo makes of what verify wrote down."""

import fcntl
import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.engines import ENGINES
from installer.engines.node_shell import MARK
from installer.errors import InstallerError, LockedError, UndoIncompleteError
from installer.host.files import Host
from installer.lifecycle import handover, installation_report, ledger_access, uninstall, verify_leftovers
from installer.model.facts import EngineRow, PendingUndo, Record
from installer.model.files import Layout
from installer.model.options import Options
from tests.support.files import put

LATER_S = 0.3


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(host_root=PurePosixPath(tmp_path))


@pytest.fixture
def host(options: Options) -> Host:
    return Host.under(options.host_root)


@pytest.fixture
def holder(host: Host, options: Options) -> Ledger:
    """Return the ledger of the node, which is held."""
    return Ledger.open(host, options.layout)


@contextmanager
def later(act: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(LATER_S, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_a_ledger_that_stays_held_is_given_up_in_time(
    options: Options, host: Host, holder: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_access, "ENDS_S", 0.5)
    began = time.monotonic()

    with pytest.raises(LockedError):
        ledger_access.open_for_run(host, options)

    assert holder.record.empty
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("pid_file", ["/run/nvidia/toolkit/toolkit.pid", "/run/theirs.pid"])
def test_a_ledger_whose_holder_serves_the_node_is_not_waited_for(
    options: Options, host: Host, holder: Ledger, pid_file: str
) -> None:
    """Nor any longer, once that is so."""
    holder.write(replace(holder.record, pid_file=PurePosixPath("/run/theirs.pid")))
    path = host.local_path(PurePosixPath(pid_file))
    path.parent.mkdir(parents=True)
    began = time.monotonic()
    with path.open("w") as pidfile:
        with later(lambda: fcntl.flock(pidfile, fcntl.LOCK_EX)), pytest.raises(LockedError):
            ledger_access.open_for_run(host, options)
        with pytest.raises(LockedError):
            ledger_access.open_for_run(host, options)

    assert time.monotonic() - began < ledger_access.ENDS_S


def configured(engine: str) -> Record:
    row = ENGINES[engine]
    return Record(engines=(EngineRow(engine, row.socket, row.unit, {}, PurePosixPath("/state")),))


def in_a_container(root: Path) -> None:
    """Make what CRI-O and the kernel have of a container whose mount namespace is ours."""
    for path in (root / "state/abc/userdata", root / "proc/7/ns"):
        path.mkdir(parents=True)
    (root / "state/abc/userdata/pidfile").write_text("7")
    (root / "proc/7/ns/mnt").symlink_to(Path("/proc/self/ns/mnt").readlink())


def test_an_undo_in_a_container_of_crio_alone_is_handed_over_or_not_begun(host: Host, tmp_path: Path) -> None:
    assert not handover.find_reason(host, Options(), configured("crio"))
    in_a_container(tmp_path)

    assert not handover.find_reason(host, Options(), configured("containerd")), "which restarts meanwhile"
    assert handover.find_reason(host, Options(), configured("crio"))


def test_an_undo_that_no_systemd_takes_over_is_not_pending(
    host: Host, options: Options, holder: Ledger
) -> None:
    pending = PendingUndo("2026-11-28T19:00:00Z", "our runtime runs trainer")

    with pytest.raises(UndoIncompleteError, match="reach systemd") as raised:
        handover.hand_over(host, options, holder, pending, time.monotonic())

    assert raised.value.code == "undo-not-handed-over"
    assert holder.record.undo_pending is None


def test_an_undo_that_no_systemd_finishes_names_its_own_reason_first(
    host: Host, options: Options, holder: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undo(*_: object, **__: object) -> None:
        problem = "undo everything (our runtime runs trainer)"
        raise UndoIncompleteError(problem, remedy="run uninstall again when that has ended", code="in-use")

    monkeypatch.setattr(uninstall, "undo", undo)

    with pytest.raises(UndoIncompleteError, match="our runtime runs trainer") as raised:
        uninstall.undo_or_hand_over(host, options, holder)

    (failure,) = raised.value.others
    assert failure.problem.startswith("hand over the undo (reach systemd")
    assert failure.remedy == "run uninstall on the node, or as a Job: status shows what is still installed"


# What verify makes

LAYOUT = Layout()
NAME = f"{MARK}-1a2b3c4d5e6f7a8b"
MADE = verify_leftovers.Made("docker", PurePosixPath("/no.sock"), "docker.service", NAME)
ROW = ["docker", "/no.sock", "docker.service", NAME]


def written(host: Host) -> object:
    local = host.local_path(LAYOUT.made)
    return json.loads(local.read_text())["made"] if local.exists() else []


def test_what_verify_makes_is_written_down_for_root_alone_as_long_as_it_may_be_there(host: Host) -> None:
    host.local_path(LAYOUT.made).parent.mkdir(parents=True)
    with verify_leftovers.record_made(host, LAYOUT, MADE):
        during = written(host), stat.S_IMODE(host.local_path(LAYOUT.made).stat().st_mode)
    after = written(host)
    with pytest.raises(InstallerError), verify_leftovers.record_made(host, LAYOUT, MADE):
        raise InstallerError("remove it", remedy="none")

    assert (during, after) == (([ROW], 0o600), [])
    assert not verify_leftovers.remove_made(host, LAYOUT)
    assert written(host) == [ROW], "which could not be removed"


@pytest.mark.parametrize("made", [[[*ROW[:3], "training"]], [[ROW]], "made"], ids=["name", "shape", "text"])
def test_nothing_is_removed_that_verify_has_not_written(tmp_path: Path, made: object) -> None:
    host = put(tmp_path, {LAYOUT.made: json.dumps({"made": made})})

    assert not verify_leftovers.remove_made(host, LAYOUT, hurried=True)


def test_what_an_undo_could_not_do_is_a_sentence() -> None:
    (line,) = installation_report.list_last_act(Record(finished=True, undo_problem="undo x (y)"))

    assert line.state == f"incomplete, cannot undo x (y): {installation_report.AGAIN}"
