"""What the children of ``run`` do: install, check, stop, the NRI plugin, the metrics server."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from installer.cli import log as logging
from installer.errors import Exit, InstallerError, StoppedError
from installer.host import supervision
from installer.host.events import internal_errors
from installer.lifecycle import handover, install, uninstall
from installer.model.files import loads
from installer.model.options import Options, Wish
from installer.nri import state as nri
from installer.supervisor import STOPPED


def serve_metrics(options: Options) -> int:
    """Answer who asks for metrics."""
    from installer.metrics.listening import serve_beside  # loads the library, which nobody else needs

    return serve_beside(options)


Act = Callable[[Options, Sequence[str]], int]
ACTS: Final[dict[str, Act]] = {
    "install": lambda options, _: install.first_install(options),
    "check": lambda options, _: install.check(options, asked=False),
    "asked": lambda options, _: install.check(options, asked=True),
    "stop": lambda options, words: uninstall.stop(options, float(words[0])),
    "handover": lambda options, _: handover.await_successor(options),
    "undo": lambda options, _: uninstall.carry_on(options),
    "nri": lambda options, words: nri.serve_beside(options, words[0], logging.current_format()),
    "metrics": lambda options, _: serve_metrics(options),
}
# Whose end is not that of ``run``: Kubernetes asks why that has ended.
PASSING: Final = frozenset({"check", "asked", "nri", "metrics"})


def main(words: Sequence[str]) -> int:
    """Do one act, and return its exit code.

    The words are those of ``Supervisor.start``: act, file of the options, descriptors, the plugin's ends.
    """
    verb, path, fds, ends, *more = words
    supervision.serve(Path(path), fds, ends)
    code: int = Exit.UNDO_INCOMPLETE
    try:
        options = _options(Path(path))
        if verb == "undo":
            Path(path).unlink()  # a copy of its own
        with internal_errors():
            code = ACTS[verb](options, more)
    except StoppedError:
        code = STOPPED
    except InstallerError as error:
        logging.say_failed(error)
        code = error.exit
    if verb not in PASSING and code != STOPPED and not (verb == "install" and code == Exit.OK):
        logging.leave_outcome()
    return code


def _options(here: Path) -> Options:
    """Return what ``run`` was asked for, and speak as it does."""
    wish = loads(here.read_bytes(), Wish)
    if wish.nvidia:
        from installer.cli.nvidia import SPOKEN
        from installer.cli.nvidia_flags import spell_option

        logging.configure(logging.LogFormat(wish.log_format), spoken=SPOKEN, spelling=spell_option)
    else:
        logging.configure(logging.LogFormat(wish.log_format))
    return wish.options
