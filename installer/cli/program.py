"""Run the whole program: block signals, then do a verb, or the act of a child of ``run``."""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from installer.errors import Exit, InstallerError, InternalError, StoppedError
from installer.host import supervision
from installer.host.events import SERVICES, internal_errors, log, open_standard_streams

if TYPE_CHECKING:
    from installer.model.options import Options

# Acts after which ``run`` ends, a failed install included: Kubernetes reads the outcome.
ENDING: Final = frozenset({"install", "stop", "undo"})


def main(act: Callable[[Sequence[str]], int] | None = None, *, child: bool = False) -> None:
    """Do an act, and exit with the exit code.

    Args:
        act: gets the arguments of the command line and returns the exit code; by default, does a verb.
        child: this process is a child of ``run``, and does the act in the arguments.
    """
    supervision.block_signals()
    finished = open_standard_streams(supervision.stop_requested)
    # Only the child that installs finds the host as it was before.
    host_is_changed = child and sys.argv[1:2] != ["install"]
    code: int = Exit.UNDO_INCOMPLETE if host_is_changed else Exit.FAILED
    if child:
        act = _act_as_child
    elif act is None:
        act = _do_verb
    try:
        code = act(sys.argv[1:])
    except SystemExit as end:  # click has completed a shell's words
        code = int(end.code or Exit.OK)
    except (InstallerError, MemoryError) as error:
        failure = error if isinstance(error, InstallerError) else InternalError(error)
        # Verbs of ours that are no service answer a person; NVIDIA's command line is a service.
        is_service = act is not _do_verb or not SERVICES.isdisjoint(sys.argv[1:2])
        _say_failed(failure, as_text=sys.stderr.isatty() or not is_service)
    except Exception as error:  # noqa: BLE001 - the verbs report their own errors: the program itself is not whole
        again = "uninstall" if host_is_changed else "it again"
        reason = f"toolkit-installer: cannot start the program (internal error: {type(error).__name__})"
        sys.stderr.write(f"{reason}; install it anew, then run {again}\n")
    if not finished():
        code = Exit.FAILED
    sys.stderr.flush()
    os._exit(code)  # the interpreter would free object by object; the kernel frees the memory at once


def _say_failed(error: InstallerError, *, as_text: bool) -> None:
    """Report an error like ``cli.log``, without its modules: they are not loaded, or could not be."""
    if as_text:
        sys.stderr.write(f"toolkit-installer: {error}\n")
    else:
        log.error("failed", code=error.code, problem=error.problem, remedy=error.remedy)


@contextmanager
def _loading() -> Iterator[None]:
    """Load modules in the block without garbage collections: each would look at all modules loaded so far."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # modules stay, and later collections leave them out
        gc.enable()


def _do_verb(words: Sequence[str]) -> int:
    with _loading():
        from installer.cli import app

    return app.main(words)


def _act_as_child(words: Sequence[str]) -> int:
    """Do the act of a child of ``run``, with the words of ``Supervisor.start``; return the exit code."""
    from installer.cli import log as logging
    from installer.model.files import loads
    from installer.model.options import RunRequest
    from installer.supervisor import STOPPED, WAITING

    act, options_file, fds, plugin_ends, run_pid, *more = words
    supervision.serve(Path(options_file), fds, plugin_ends, run_pid)
    code: int = Exit.UNDO_INCOMPLETE
    try:
        request = loads(Path(options_file).read_bytes(), RunRequest)
        if request.nvidia and act != "undo":  # the unit that finishes an undo is our own program on the host
            from installer.cli import nvidia_log

            nvidia_log.configure(request.log_format)
        else:
            logging.configure(request.log_format)
        if act == "undo":
            Path(options_file).unlink()  # the unit has a copy of its own
        with internal_errors():
            with _loading():
                do = _find_act(act, request.options, more)
            code = do()
    except StoppedError:
        code = STOPPED
    except InstallerError as error:
        logging.say_failed(error)
        code = error.exit
    is_installed = act == "install" and code == Exit.OK
    if act in ENDING and code not in {STOPPED, WAITING} and not is_installed:
        logging.leave_outcome()
    return code


def _find_act(act: str, options: "Options", words: Sequence[str]) -> Callable[[], int]:
    """Return the function that does an act; ``words`` are the further arguments of the child."""
    if act == "metrics":  # this child stays, and loads no module that changes the node
        from installer.metrics import listening

        return partial(listening.serve_beside, options)

    from installer.cli import log as logging
    from installer.lifecycle import install, uninstall
    from installer.nri import state as nri
    from installer.supervisor import AGAIN

    match act:
        case "install":
            return partial(install.first_install, options, "".join(words))
        case "check":
            return partial(install.check, options, asked=False)
        case "asked":
            return partial(install.check, options, asked=True)
        case "stop":
            requested_at, attempt = words
            return partial(uninstall.stop, options, float(requested_at), again=attempt == AGAIN)
        case "undo":
            from installer.lifecycle import successor

            return partial(successor.finish, options)
        case "nri":
            return partial(nri.serve_beside, options, words[0], logging.current_format())
        case _:
            raise KeyError(act)
