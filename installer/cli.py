"""Our own command line: argv and environment in, a verb and its exit code out.

A start is read without click: loading it takes as long as all else that a start which changes nothing does.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from installer import log as logging
from installer.decide.errors import Exit, InstallerError
from installer.decide.options import Options
from installer.flags import options_from
from installer.host.events import log
from installer.host.limits import refuse_few_files
from installer.record.internal import internal_errors
from installer.words import plain, unknown_variables

Values = Mapping[str, Any]  # of the flags, by field


def options_of(values: Values, given: frozenset[str]) -> Options:
    """Return the options of a verb that takes all flags; ``given`` are those that somebody set."""
    logging.configure(logging.LogFormat(values["log_format"]))
    for variable, meant in unknown_variables(os.environ).items():
        log.warning("unknown variable ignored", variable=variable, meant=meant)
    options = options_from(values, given)
    refuse_few_files()
    return options


def run(values: Values, given: frozenset[str]) -> Exit:
    """Install, publish readiness, and wait until told to stop."""
    from installer import daemon

    return daemon.run(options_of(values, given))


def install(values: Values, given: frozenset[str]) -> Exit:
    """Install, leave it in place, and tell what shows that it works."""
    from installer import daemon

    return daemon.install(options_of(values, given))


def uninstall(values: Values, given: frozenset[str]) -> Exit:
    """Undo everything."""
    from installer.uninstall import uninstall as undo

    # How an install would be done is not heeded, so what is wrong with it keeps nobody from an uninstall.
    return undo(options_of({**values, "mode": "runtime"}, given))


ACTS: Final[dict[str, Callable[[Values, frozenset[str]], Exit]]] = {
    "run": run,
    "install": install,
    "uninstall": uninstall,
}
OF_A_POD: Final = frozenset({"run", "install", "uninstall", "nri", "untaint"})


def main(argv: Sequence[str]) -> int:
    """Run one verb; return its exit code."""
    logging.configure(logging.LogFormat.AUTO)
    try:
        with internal_errors():
            return _called(argv)
    except InstallerError as error:
        logging.say_failed(error)
        return error.exit
    finally:
        if argv[:1] and argv[0] in OF_A_POD:  # what only looks is called beside the one that a pod is for
            logging.leave_outcome()


def _called(argv: Sequence[str]) -> int:
    said = plain(argv[1:], os.environ) if argv[:1] and argv[0] in ACTS else None
    if said is not None:
        return ACTS[argv[0]](*said)
    from installer.commands import called

    return called(list(argv))
