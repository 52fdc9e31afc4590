"""An undo that is handed over: who began it ends when another has the ledger, and that one waits for it."""

import threading
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.errors import LockedError
from installer.decide.layout import Layout
from installer.decide.rows import Record, ToolkitRow
from installer.host.files import Host
from installer.record.ledger import Ledger, opened
from installer.record.successor import await_successor, ledger_of_predecessor

LAYOUT = Layout(PurePosixPath("/usr/local/nvidia"))
HELD = Record(toolkit=ToolkitRow("digest", None, ""))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.under(PurePosixPath(tmp_path))


def test_who_hands_an_undo_over_may_end_once_another_has_the_ledger(host: Host) -> None:
    with opened(lambda: Ledger.open(host, LAYOUT)):
        await_successor(host, LAYOUT)


def test_who_hands_an_undo_over_may_end_where_that_is_done_already(host: Host) -> None:
    await_successor(host, LAYOUT)


def test_an_undo_that_was_handed_over_waits_for_the_ledger(host: Host) -> None:
    held, ends = threading.Event(), threading.Event()

    def predecessor() -> None:
        with opened(lambda: Ledger.open(host, LAYOUT)) as ledger:
            ledger.write(HELD)
            held.set()
            ends.wait(30)

    thread = threading.Thread(target=predecessor)
    thread.start()
    assert held.wait(30)
    with pytest.raises(LockedError):
        Ledger.open(host, LAYOUT)
    threading.Timer(0.3, ends.set).start()

    with opened(lambda: ledger_of_predecessor(host, LAYOUT)) as ledger:
        found = ledger.held

    thread.join(30)
    assert found == HELD
