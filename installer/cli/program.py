"""The whole program: signals first, then the verb, or what a child of ``run`` is to do."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from installer.errors import Exit, InstallerError, InternalError, StoppedError
from installer.host import supervision
from installer.host.events import internal_errors, log, open_standard_streams

if TYPE_CHECKING:
    from installer.model.options import Options

# The acts of a child that ``run`` ends with, an install that failed among them: Kubernetes asks why.
ENDING: Final = frozenset({"install", "stop", "undo"})


def main(act: Callable[[Sequence[str]], int] | None = None, *, child: bool = False) -> None:
    """Do ``act``, by default one verb, or what a ``child`` of ``run`` is to do, and exit with its code."""
    supervision.block_signals()
    finished = open_standard_streams(supervision.stop_requested)
    # The host of any other child than the one that installs is not as before.
    later = child and sys.argv[1:2] != ["install"]
    code: int = Exit.UNDO_INCOMPLETE if later else Exit.FAILED
    try:
        code = (_act if child else act or _verb)(sys.argv[1:])
    except SystemExit as end:  # click has completed a shell's words
        code = int(end.code or Exit.OK)
    except (InstallerError, MemoryError) as error:
        known = error if isinstance(error, InstallerError) else InternalError(error)
        # As cli.log would tell it, whose modules are not loaded, or could not be.
        if sys.stderr.isatty():
            sys.stderr.write(f"toolkit-installer: {known}\n")
        else:
            log.error("failed", code=known.code, problem=known.problem, remedy=known.remedy)
    except Exception as error:  # noqa: BLE001 - the verbs tell their own: the program itself is not whole
        reason = f"toolkit-installer: cannot start the program (internal error: {type(error).__name__})"
        sys.stderr.write(f"{reason}; install it anew, then run {'uninstall' if later else 'it again'}\n")
    code = code if finished() else Exit.FAILED
    sys.stderr.flush()
    os._exit(code)  # what the interpreter would take down first, object by object, the kernel frees


def _verb(words: Sequence[str]) -> int:
    from installer.cli import app

    return app.main(words)


def _act(words: Sequence[str]) -> int:
    """Do one act of a child of ``run``, in the words of ``Supervisor.start``, and return its exit code."""
    from installer.cli import log as logging
    from installer.model.files import loads
    from installer.model.options import RunRequest
    from installer.supervisor import STOPPED

    act, path, fds, ends, run_pid, *more = words
    supervision.serve(Path(path), fds, ends, run_pid)
    code: int = Exit.UNDO_INCOMPLETE
    try:
        request = loads(Path(path).read_bytes(), RunRequest)
        if request.nvidia and act != "undo":  # the unit that finishes an undo is our own program on the host
            from installer.cli import nvidia_log

            nvidia_log.configure(request.log_format)
        else:
            logging.configure(request.log_format)
        if act == "undo":
            Path(path).unlink()  # a copy of its own
        with internal_errors():
            code = _find_act(act, request.options, more)()
    except StoppedError:
        code = STOPPED
    except InstallerError as error:
        logging.say_failed(error)
        code = error.exit
    if act in ENDING and code != STOPPED and not (act == "install" and code == Exit.OK):
        logging.leave_outcome()
    return code


def _find_act(act: str, options: "Options", words: Sequence[str]) -> Callable[[], int]:
    if act == "metrics":  # it stays, and loads nothing that acts
        from installer.metrics import listening

        return lambda: listening.serve_beside(options)

    from installer.cli import log as logging
    from installer.lifecycle import install, successor, uninstall
    from installer.nri import state as nri
    from installer.supervisor import AGAIN

    acts: dict[str, Callable[[], int]] = {
        "install": lambda: install.first_install(options),
        "check": lambda: install.check(options, asked=False),
        "asked": lambda: install.check(options, asked=True),
        "stop": lambda: uninstall.stop(options, float(words[0]), again=words[1] == AGAIN),
        "undo": lambda: successor.finish(options),
        "nri": lambda: nri.serve_beside(options, words[0], logging.current_format()),
    }
    return acts[act]
