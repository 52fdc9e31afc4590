"""Puts the NVIDIA container toolkit on a node and takes every change back."""

import sys
from types import TracebackType


def _end_quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show the traceback of an exception, except for an interrupt before signals are blocked."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _end_quietly
