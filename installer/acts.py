"""What the children of ``run`` do: install, check, stop, the NRI plugin, the metrics server."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from installer import daemon, figures, nri, stop
from installer import log as logging
from installer.decide import options_json
from installer.decide.errors import Exit, InstallerError, StoppedError
from installer.decide.options import Options
from installer.host import supervision
from installer.host.supervision import STOPPED
from installer.record.internal import internal_errors

Act = Callable[[Options, Sequence[str]], int]
ACTS: Final[dict[str, Act]] = {
    "install": lambda options, _: daemon.first_install(options),
    "check": lambda options, _: daemon.check(options, asked=False),
    "asked": lambda options, _: daemon.check(options, asked=True),
    "stop": lambda options, words: stop.stop(options, float(words[0])),
    "handover": lambda options, _: stop.await_successor(options),
    "undo": lambda options, _: stop.carry_on(options),
    "nri": lambda options, words: nri.serve_beside(options, words[0]),
    "metrics": lambda options, _: figures.serve(options),
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


def _options(path: Path) -> Options:
    """Return what ``run`` was asked for, and speak as it does."""
    options, nvidia, log_format = options_json.loads(path.read_text())
    if nvidia:
        from installer.compat import SPOKEN
        from installer.compat_words import spelt

        logging.configure(logging.LogFormat(log_format), spoken=SPOKEN, spelling=spelt)
    else:
        logging.configure(logging.LogFormat(log_format))
    return options
