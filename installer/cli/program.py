"""The whole program: signals first, then the verb."""

import os
import sys
from typing import NoReturn

from installer.errors import Exit, InstallerError, InternalError
from installer.host import supervision
from installer.host.events import log, open_standard_streams


def main(*, child: bool = False) -> None:
    """Run one verb, or what a ``child`` of ``run`` is to do, and exit with its code."""
    supervision.block_signals()
    finished = open_standard_streams(supervision.stop_requested)
    # The host of any other child than the one that installs is not as before.
    later = child and sys.argv[1:2] != ["install"]
    code: int = Exit.UNDO_INCOMPLETE if later else Exit.FAILED
    try:
        code = _act() if child else _verb()
    except SystemExit as end:  # click has completed a shell's words
        code = int(end.code or Exit.OK)
    except (InstallerError, MemoryError) as error:
        _say(error if isinstance(error, InstallerError) else InternalError(error))
    except Exception as error:  # noqa: BLE001 - the verbs tell their own: the program itself is not whole
        reason = f"toolkit-installer: cannot start the program (internal error: {type(error).__name__})"
        sys.stderr.write(f"{reason}; install it anew, then run {'uninstall' if later else 'it again'}\n")
    _end(code if finished() else Exit.FAILED)


def _end(code: int) -> NoReturn:
    """End with ``code``: what the interpreter would take down first, object by object, the kernel frees."""
    sys.stderr.flush()
    os._exit(code)


def _verb() -> int:
    from installer.host.kernel import refuse_little_memory

    refuse_little_memory()  # the modules of a verb may not fit
    from installer.cli.app import main as verb

    return verb(sys.argv[1:])


def _act() -> int:
    from installer.cli.child import main as act

    return act(sys.argv[1:])


def _say(error: InstallerError) -> None:
    """Tell an error as ``cli.log`` would: its modules are not loaded, or could not be."""
    if sys.stderr.isatty():
        sys.stderr.write(f"toolkit-installer: {error}\n")
    else:
        log.error("failed", code=error.code, problem=error.problem, remedy=error.remedy)
