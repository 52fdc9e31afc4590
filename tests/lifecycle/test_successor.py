"""The unit that finishes an undo: what it loads ahead, when it acts, and when it leaves the undo to another."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger, read_record
from installer.errors import Exit, InstallerError, UndoIncompleteError
from installer.host import supervision
from installer.host.files import Host
from installer.lifecycle import install, successor
from installer.model.facts import Failure, PendingUndo, Record
from installer.model.options import Options, RunRequest

SINCE = "2026-11-28T19:00:00Z"
PROBLEM = "undo everything (our runtime runs trainer)"
EARLIEST_S = 0.4
PENDING = Record(
    finished=True, undo_problem=PROBLEM, undo_pending=PendingUndo(SINCE, PROBLEM, waits_s=EARLIEST_S)
)
# Prints each module that a function of these rooms imports and that is not loaded yet.
UNLOADED = """
import ast, sys
from pathlib import Path
from installer.lifecycle import successor
successor.load()
rooms = Path(successor.__file__).parents[1]
for file in sorted(file for room in successor.ROOMS for file in (rooms / room).rglob("*.py")):
    tree = ast.parse(file.read_text())
    typing_only = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    ignored = {id(child) for node in typing_only for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [node.module]
        print(*(name for name in names if name not in sys.modules), sep="\\n", end="\\n")
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(host_root=PurePosixPath(tmp_path))


@pytest.fixture
def host(options: Options, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(successor, "LOOK_S", 0.05)
    monkeypatch.setattr(successor, "AGAIN_S", EARLIEST_S)
    return Host.under(options.host_root)


def write(host: Host, options: Options, record: Record) -> None:
    ledger = Ledger.open(host, options.layout)
    ledger.write(record)
    ledger.lock.release()


@contextmanager
def later(act: threading.Timer) -> Iterator[None]:
    act.start()
    try:
        yield
    finally:
        act.join()


def test_all_that_an_undo_imports_where_it_is_used_is_loaded_ahead() -> None:
    done = subprocess.run([sys.executable, "-c", UNLOADED], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_an_undo_begins_a_while_after_the_hand_over_and_leaves_nothing(host: Host, options: Options) -> None:
    write(host, options, PENDING)
    began = time.monotonic()

    assert successor.await_end(host, options, ()) is Exit.OK

    assert time.monotonic() - began >= EARLIEST_S
    assert not host.exists(options.layout.home)


def test_an_undo_that_run_has_taken_over_is_left_to_it(host: Host, options: Options) -> None:
    write(host, options, PENDING)
    taken = replace(PENDING, undo_pending=None, pid_file=options.pid_file)

    with later(threading.Timer(0.1, write, (host, options, taken))):
        assert successor.await_end(host, options, ()) is Exit.OK

    assert read_record(host, options.layout) == taken


def test_an_undo_is_left_to_a_run_that_is_refused(
    host: Host, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After a stop without an answer of the API: the DaemonSet wants this node, though its new plan has failed.
    problem = "configure containerd (it did not start)"

    def refuse(*_: object) -> None:
        raise InstallerError(problem, remedy="see its log", code="failed-before")

    monkeypatch.setattr(install, "_plan", refuse)
    write(host, options, replace(PENDING, failed=Failure("7890", problem)))

    with pytest.raises(InstallerError, match="it did not start"):
        install.run(RunRequest(options, nvidia=False, log_format="json"))

    assert successor.await_end(host, options, ()) is Exit.OK
    left = read_record(host, options.layout)
    assert left is not None
    assert left.failed is not None


def test_an_undo_that_was_handed_over_again_waits_from_then_on(host: Host, options: Options) -> None:
    write(host, options, PENDING)
    again = replace(PENDING, undo_pending=PendingUndo("2026-11-28T19:00:09Z", PROBLEM, EARLIEST_S))
    began = time.monotonic()

    with later(threading.Timer(0.3, write, (host, options, again))):
        successor.await_end(host, options, ())

    assert time.monotonic() - began >= 0.3 + EARLIEST_S


def test_a_ledger_that_another_command_holds_is_opened_when_that_has_ended(
    host: Host, options: Options
) -> None:
    write(host, options, PENDING)
    holder = Ledger.open(host, options.layout)
    began = time.monotonic()

    with later(threading.Timer(3 * EARLIEST_S, holder.lock.release)):
        assert successor.await_end(host, options, ()) is Exit.OK

    assert time.monotonic() - began >= 3 * EARLIEST_S
    assert not host.exists(options.layout.home)


def test_an_undo_that_waits_for_a_day_fails(
    host: Host, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(successor, "LONGEST_S", 0.1)
    write(host, options, PENDING)

    with pytest.raises(UndoIncompleteError, match="within a day"):
        successor.await_end(host, options, ())

    assert read_record(host, options.layout) == PENDING


def test_a_unit_that_is_stopped_leaves_the_undo_to_the_next_command(host: Host, options: Options) -> None:
    write(host, options, PENDING)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, supervision.STOP)
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert successor.await_end(host, options, ()) is Exit.OK
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert read_record(host, options.layout) == PENDING
