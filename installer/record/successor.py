"""An undo that a container asks for while its engine is ending it, carried on by a unit of systemd's.

CRI-O stops when the calls in flight have returned, the one that ends our container among them: who waits
in the container for CRI-O's restart waits for himself. So systemd is asked for a unit, our own program in the
container's mount namespace, and the container ends. Until the unit has the ledger nothing is changed.
"""

import sys
import time
from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError, LockedError, UndoIncompleteError
from installer.decide.inode import File, Kind, Meta
from installer.decide.layout import Layout
from installer.decide.options import Options, RestartMode
from installer.decide.rows import Record
from installer.host.containers import pid_of_own
from installer.host.events import log
from installer.host.files import Host
from installer.host.locks import lock_directory
from installer.host.supervision import PACKAGE, command, run
from installer.record import units
from installer.record.ledger import Ledger
from installer.record.started import PATH

UNIT: Final = "toolkit-installer-undo.service"
TAKEN_S: Final = 10.0
POLL_S: Final = 0.02
REMEDY: Final = "run uninstall on the node, or as a Job: everything is still installed"


def handed_over(host: Host, options: Options, held: Record) -> bool:
    """Hand the undo to a unit of systemd's if we are a container of an engine that cannot restart meanwhile.

    Raises:
        UndoIncompleteError: it cannot be handed over; nothing was changed.
    """
    rows = [row for row in held.engines if ENGINES[row.name].finishes_calls]
    pids = [
        pid
        for row in rows
        if (pid := pid_of_own(host, row.state or ENGINES[row.name].state.usual)) is not None
    ]
    if not pids or options.restart_mode is RestartMode.NONE:
        return False
    found = [path for path in (place / "nsenter" for place in PATH) if host.kind(path) is Kind.FILE]
    if not found:
        raise UndoIncompleteError(
            "leave this container to undo (the node has no nsenter)",
            remedy=REMEDY,
            code="undo-not-handed-over",
        )
    words = (str(found[0]), "-t", str(pids[0]), "-m", "--", *_command(host, options))
    try:
        units.start_transient(host, UNIT, words)
    except InstallerError as error:
        raise UndoIncompleteError(
            f"hand over the undo ({error.problem})", remedy=REMEDY, code="undo-not-handed-over"
        ) from error
    log.info("undo handed over", unit=UNIT, reason=f"{rows[0].name} restarts when this container has ended")
    return True


def _command(host: Host, options: Options) -> tuple[str, ...]:
    """Return the command that undoes as this process would: with its environment, and options of its own."""
    copy = options.options_file.with_name(f"{options.options_file.name}.undo")
    host.replace(copy, File(run().options.read_bytes(), Meta(0o600)))
    again = (*command(), "undo", str(host.local_path(copy)), "", "0")
    return (sys.executable, "-I", "-S", str(PACKAGE / "host/successor.py"), str(run().pid), *again)


def await_successor(host: Host, layout: Layout) -> None:
    """Return when somebody else has the ledger, or is done with it: from then on we may end.

    Raises:
        UndoIncompleteError: nobody takes it.
    """
    deadline = time.monotonic() + TAKEN_S
    while time.monotonic() < deadline:
        try:
            lock = lock_directory(host, layout.home)
        except LockedError:
            return
        if lock is None:
            return
        lock.release()
        time.sleep(POLL_S)
    raise UndoIncompleteError(
        f"hand over the undo ({UNIT} does not start)", remedy=REMEDY, code="undo-not-handed-over"
    )


def ledger_of_predecessor(host: Host, layout: Layout) -> Ledger:
    """Open the ledger that a container is about to release.

    Raises:
        LockedError: somebody else has it.
    """
    deadline = time.monotonic() + TAKEN_S
    while True:
        try:
            return Ledger.open(host, layout)
        except LockedError:
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
