"""What ``status`` looks at, and how it stood when all was good: later probes compare no more than that."""

import json
import time
from contextlib import suppress
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.options import Options
from installer.host.files import Host
from installer.host.glance import HELD
from installer.host.watched import SECOND_NS, Watched
from installer.record import nri_seen
from installer.record.ledger import read_record
from installer.status import told

TRIES: Final = 3
AT_MOST_S: Final = 1.1  # a file system that counts whole seconds


def marks(options: Options) -> tuple[bool, tuple[str, ...]]:
    """Return whether ``status`` finds all good, and a mark and a path for each thing that it looks at.

    Where the NRI plugin is to be there, its lock is to be held. There are no marks where a node is not
    ready so. None also where a path has letters that the readiness file would have to escape, or is mounted
    elsewhere: each probe is then given its answer by ``status``, as after any change.
    """
    good = False
    with suppress(InstallerError):
        for _ in range(1 if options.mounts else TRIES):
            host = Watched.under(options.host_root, options.mounts)
            began_ns = time.time_ns()
            lines = told(host, options)
            good = all(line.good for line in lines)
            plugin, lock = _plugin(host, options)
            if options.mounts or not plugin or not all(line.good or line.later for line in lines):
                break
            waits_s = (host.settled_ns - began_ns) / SECOND_NS
            if waits_s <= 0:
                return good, _words(host, lock)
            time.sleep(min(waits_s, AT_MOST_S))
    return good, ()


def _plugin(host: Host, options: Options) -> tuple[bool, tuple[str, ...]]:
    """Return whether the NRI plugin is as a ready node has it, and its lock, where one is to be there."""
    held = read_record(host, options.layout)
    if held is None or held.nri is None:
        return True, ()
    ready = all(good or later for _, _, good, later in nri_seen.lines(host, options.nri, held))
    return ready, (str(host.local_path(nri_seen.of_ledger(options.nri, held).lock)),)


def _words(host: Watched, held: tuple[str, ...]) -> tuple[str, ...]:
    lines = (
        *(f"{mark} {path}" for path, marks in host.marks.items() for mark in marks),
        *(f"{HELD} {path}" for path in held),
    )
    return lines if all(json.dumps(line) == f'"{line}"' for line in lines) else ()
