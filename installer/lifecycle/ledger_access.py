"""Open the ledger: as a verb, as a child of ``run``, or after another instance has ended.

An error while the ledger is open is published in the metrics, and may be that of an incomplete undo.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Final

from installer.change.ledger import Ledger, hold, read_record
from installer.errors import UNINSTALL_AGAIN, InstallerError, LockedError, StoppedError, UndoIncompleteError
from installer.host import locks, supervision
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.metrics import snapshot as metrics
from installer.model.files import Layout
from installer.model.options import Options

ENDS_S: Final = 30.0  # for another instance to end: an undo ends within 25 s
POLL_S: Final = 0.05


@contextmanager
def as_incomplete_undo(*others: type[InstallerError], again: str = UNINSTALL_AGAIN) -> Iterator[None]:
    """Raise every error of the block as an incomplete undo, except errors of the types ``others``.

    ``again`` is the act that continues.
    """
    try:
        with internal_errors():
            yield
    except InstallerError as error:
        if isinstance(error, (UndoIncompleteError, LockedError, *others)):
            raise
        raise UndoIncompleteError.because(error, again=again) from error


@contextmanager
def open_ledger(
    host: Host, options: Options, opening: Callable[[], Ledger] | None = None
) -> Iterator[Ledger]:
    """Open the ledger, and publish a failure of the block in the metrics. A stop is no failure."""
    opening = opening or partial(Ledger.open, host, options.layout, check=supervision.raise_if_stopped)
    with hold(opening) as ledger:
        try:
            with internal_errors():
                yield ledger
        except StoppedError:
            raise
        except InstallerError as error:
            metrics.publish_failure(host, options, ledger, error)
            raise


def open_as_child(host: Host, options: Options, check: Callable[[], None]) -> AbstractContextManager[Ledger]:
    """Open the ledger with the lock of ``run``, if the file of the lock still has the right name."""
    opening = partial(Ledger.open, host, options.layout, supervision.current_run().lock, check)
    return open_ledger(host, options, opening)


def open_for_run(host: Host, options: Options) -> Ledger:
    """Open the ledger for ``run``; wait, with an announcement, for a holder that does not serve this node.

    A stop waits until the ledger is open, and leads to an undo then: an earlier ``run`` may have been killed,
    or may have skipped its undo because we wait.

    Raises:
        LockedError: a run that serves this node holds the ledger, or it does not get free in time.
    """
    ledger = _open_unless_held(host, options)
    if ledger is not None:
        return ledger
    with locks.announce_wait(host, options.layout.home):
        return _open_once_free(host, options.layout, gives_up=lambda: _serves(host, options))


def open_for_uninstall(host: Host, options: Options) -> Ledger:
    """Open the ledger for ``uninstall``; wait for a holder that ends by itself.

    The child of a killed ``run`` ends by itself. The wait is not announced: a ``run`` that is stopping would
    leave its undo to us.

    Raises:
        LockedError: a run that serves this node holds the ledger, or it does not get free in time.
        StoppedError: a stop is pending.
    """
    supervision.raise_if_stopped()
    ledger = _open_unless_held(host, options)
    if ledger is not None:
        return ledger

    def gives_up() -> bool:
        supervision.raise_if_stopped()
        return _serves(host, options)

    return _open_once_free(host, options.layout, gives_up)


def _open_unless_held(host: Host, options: Options) -> Ledger | None:
    """Open the ledger; None, with an event in the log, if the holder is about to end.

    Raises:
        LockedError: a run that serves this node holds the ledger.
    """
    try:
        return Ledger.open(host, options.layout)
    except LockedError:
        if _serves(host, options):
            raise
    log.info("waiting for another instance", limit_s=ENDS_S)
    return None


def _serves(host: Host, options: Options) -> bool:
    """Tell whether the holder of the ledger serves: a stopping ``run`` removes the pidfile first."""
    # An unlocked pidfile is left by a killed ``run``: the children of that run end between two steps.
    files = {options.pid_file}
    with suppress(InstallerError):
        record = read_record(host, options.layout)
        if record is not None and record.pid_file:
            files.add(record.pid_file)
    return any(locks.is_pidfile_locked(host.local_path(path)) for path in files)


def _open_once_free(host: Host, layout: Layout, gives_up: Callable[[], bool]) -> Ledger:
    """Open the ledger as soon as it is free.

    Raises:
        LockedError: the ledger is locked for longer than ``ENDS_S``, or ``gives_up`` returns True.
    """
    deadline = time.monotonic() + ENDS_S
    while True:
        try:
            return Ledger.open(host, layout)
        except LockedError:
            if gives_up() or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
