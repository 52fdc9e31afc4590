"""An undo that is handed over: who began it ends when another has the ledger, and that one waits for it."""

import threading
from pathlib import Path, PurePosixPath

import pytest

from installer.change.ledger import Ledger, hold
from installer.engines import ENGINES
from installer.errors import LockedError, UndoIncompleteError
from installer.host.files import Host
from installer.lifecycle.handover import TAKEN_S, await_successor, hand_over, open_within
from installer.model.facts import EngineRow, Record, ToolkitRow
from installer.model.files import Layout
from installer.model.options import Options, RestartMode

LAYOUT = Layout(PurePosixPath("/usr/local/nvidia"))
HELD = Record(toolkit=ToolkitRow("digest", None, ""))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.under(PurePosixPath(tmp_path))


def test_who_hands_an_undo_over_may_end_once_another_has_the_ledger(host: Host, tmp_path: Path) -> None:
    with hold(lambda: Ledger.open(host, LAYOUT)):
        await_successor(Options(host_root=PurePosixPath(tmp_path)))


def test_who_hands_an_undo_over_may_end_where_that_is_done_already(tmp_path: Path) -> None:
    await_successor(Options(host_root=PurePosixPath(tmp_path)))


def test_an_undo_that_was_handed_over_waits_for_the_ledger(host: Host) -> None:
    held, ends = threading.Event(), threading.Event()

    def predecessor() -> None:
        with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
            ledger.write(HELD)
            held.set()
            ends.wait(30)

    thread = threading.Thread(target=predecessor)
    thread.start()
    assert held.wait(30)
    with pytest.raises(LockedError):
        Ledger.open(host, LAYOUT)
    threading.Timer(0.3, ends.set).start()

    with hold(lambda: open_within(TAKEN_S, host, LAYOUT)) as ledger:
        found = ledger.held

    thread.join(30)
    assert found == HELD


def configured(engine: str) -> Record:
    row = ENGINES[engine]
    return Record(engines=(EngineRow(engine, row.socket, row.unit, {}, PurePosixPath("/state")),))


def in_a_container(root: Path) -> None:
    """Make what CRI-O and the kernel have of a container whose mount namespace is ours."""
    for path in (root / "state/abc/userdata", root / "proc/7/ns"):
        path.mkdir(parents=True)
    (root / "state/abc/userdata/pidfile").write_text("7")
    (root / "proc/7/ns/mnt").symlink_to(Path("/proc/self/ns/mnt").readlink())


def test_an_undo_in_a_container_of_crio_is_handed_over_or_not_begun(host: Host, tmp_path: Path) -> None:
    in_a_container(tmp_path)

    with pytest.raises(UndoIncompleteError, match="the node has no nsenter"):
        hand_over(host, Options(), configured("crio"))


@pytest.mark.parametrize(
    ("engine", "mode", "contained"),
    [
        pytest.param("crio", RestartMode.AUTO, False, id="no container of it"),
        pytest.param("crio", RestartMode.NONE, True, id="nothing is restarted"),
        pytest.param("containerd", RestartMode.AUTO, True, id="an engine that restarts meanwhile"),
    ],
)
def test_an_undo_is_not_handed_over_where_the_engine_restarts_meanwhile_or_not_at_all(
    host: Host, tmp_path: Path, engine: str, mode: RestartMode, *, contained: bool
) -> None:
    if contained:
        in_a_container(tmp_path)

    assert not hand_over(host, Options(restart_mode=mode), configured(engine))
