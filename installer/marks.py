"""What ``status`` looks at, and how it stood when all was good: later probes compare no more than that."""

import json
import time
from contextlib import suppress
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.options import Options
from installer.host.watched import SECOND_NS, Watched
from installer.status import told

TRIES: Final = 3
AT_MOST_S: Final = 1.1  # a file system that counts whole seconds


def marks(options: Options) -> tuple[str, ...]:
    """Return a mark and a path for each thing that ``status`` looks at; none where all is not good.

    None also where a path has letters that the readiness file would have to escape: each probe is then given
    its answer by ``status``, as after any change.
    """
    if options.mounts:
        return ()
    with suppress(InstallerError):
        for _ in range(TRIES):
            host = Watched.under(options.host_root)
            began_ns = time.time_ns()
            if not all(line.good for line in told(host, options)):
                break
            waits_s = (host.settled_ns - began_ns) / SECOND_NS
            if waits_s <= 0:
                lines = tuple(f"{mark} {path}" for path, marks in host.marks.items() for mark in marks)
                return lines if all(json.dumps(line) == f'"{line}"' for line in lines) else ()
            time.sleep(min(waits_s, AT_MOST_S))
    return ()
