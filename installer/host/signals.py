"""Termination signals as values to look at between steps, never as interruptions.

They are blocked before anything else happens and stay pending until somebody looks:
no handler, flag, thread or lock, and it works as pid 1.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from installer.errors import StoppedError
from installer.host import supervision

# QUIT as NVIDIA's installer takes it: it is the stop signal of some images.
STOP: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
HANDLED: Final = STOP | {signal.SIGHUP}


def block() -> None:
    """Keep TERM, INT, QUIT and HUP pending from here on, in every thread that is started later."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


@contextmanager
def unblocked() -> Iterator[None]:
    """Let a child of the block start with an empty mask."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_requested() -> bool:
    """Tell whether a stop is pending, or nobody is left to have asked for one: a ``run`` was killed."""
    return bool(signal.sigpending() & STOP) or supervision.is_orphan()


def check() -> None:
    """Raise StoppedError where a stop is pending."""
    if stop_requested():
        raise StoppedError


def check_parent() -> None:
    """Raise StoppedError where the ``run`` that started this was killed; a second stop is ignored."""
    if supervision.is_orphan():
        raise StoppedError
