"""What is installed, drifted or pending: from the ledger and the files alone."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from installer import looked
from installer.decide.data import replace
from installer.decide.errors import Exit, InstallerError
from installer.decide.layout import Layout
from installer.decide.options import Drift, Options
from installer.decide.rows import Record
from installer.held import REPAIR, Line
from installer.held import lines as held_lines
from installer.host.files import Host
from installer.host.glance import is_held_pidfile
from installer.record.configs import with_put_back
from installer.record.ledger import read_record
from installer.record.lost import elsewhere
from installer.record.nri_seen import lines as nri_lines
from installer.record.ready import is_ready
from installer.record.seen import Seen
from installer.record.seen import read as read_seen
from installer.record.theirs import still_ours

RECONCILE_REPAIRS: Final = f"{looked.RECONCILE} puts it right"


def show_status(options: Options, *, ready: bool, as_json: bool, deep: bool) -> Exit:
    """Print what is held on this host; return 0 where all is good, 1 where not, 3 where nothing is held.

    ``ready`` asks for no more than whether ``run`` is, and why not.
    """
    host = Host.under(options.host_root, options.mounts)
    options = elsewhere(host, options, tell=False)
    held, seen = _held(host, options.layout), read_seen(host, options.state_file)
    ignores = seen is not None and seen.current and seen.ignores
    found = held_lines(host, options, held, deep=deep, ignores=ignores)
    files = [_to_ask(line, seen) if held else line for line in found]
    lines = _among(files, host, options, held, seen)
    why = next((f"{line.what}: {line.state}" for line in lines if not _is_well(line)), "")
    if not (why or is_ready(host, options.ready_file, options.pid_file)):
        why = looked.not_proven(host, options.pid_file, held, seen)
    if ready:
        sys.stdout.write(f"{why}\n" if why else "")  # Kubernetes shows it in the event of a failed probe
        return Exit.FAILED if why else Exit.OK
    _print(lines, held, seen, why, as_json=as_json)
    if held is None and not lines:
        return Exit.NOTHING_INSTALLED
    return Exit.OK if all(line.good for line in lines) else Exit.FAILED


def alive(options: Options) -> Exit:
    """Return 0 where ``run`` holds its pidfile, else 1."""
    host = Host.under(options.host_root, options.mounts)
    return Exit.OK if is_held_pidfile(str(host.local_path(options.pid_file))) else Exit.FAILED


def _held(host: Host, layout: Layout) -> Record | None:
    held = read_record(host, layout)
    return held and with_put_back(host, still_ours(host, layout, held))


def _among(
    files: Iterable[Line], host: Host, options: Options, held: Record | None, seen: Seen | None
) -> list[Line]:
    """Return the lines of files among what ``run`` and the NRI plugin say: they know more than files."""
    before = (Line(*each) for each in (looked.lines(seen) if held else ()))
    return [*before, *files, *(Line(*each) for each in nri_lines(host, options.nri, held))]


def _is_well(line: Line) -> bool:
    """Tell whether a line keeps no node from being ready."""
    return line.good or line.later


def _to_ask(line: Line, seen: Seen | None) -> Line:
    """Return a line whose remedy is to ask the ``run`` that waits, where one does: it keeps others out."""
    waits = seen is not None and seen.current
    return replace(line, state=line.state.replace(REPAIR, RECONCILE_REPAIRS)) if waits else line


def _mode(held: Record | None) -> str | None:
    """Return how engines were set up: nri is cdi with a plugin beside ``run``, whose lines tell of it."""
    if held is None or held.empty:
        return None
    return "cdi" if held.cdi else "runtime"


def _print(lines: Sequence[Line], held: Record | None, seen: Seen | None, why: str, *, as_json: bool) -> None:
    if as_json:
        document = {
            "installed": held is not None,
            "ready": not why,
            "why": why,
            "mode": _mode(held),
            "engines": list(held.served) if held else [],
            "held": [{"what": line.what, "state": line.state, "good": line.good} for line in lines],
            "look": looked.document(seen),
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    if held is None and not lines:
        sys.stdout.write("nothing is installed\n")
        return
    width = max((len(line.what) for line in lines), default=0)
    for line in lines:
        sys.stdout.write(f"{'ok ' if line.good else 'BAD'} {line.what:<{width}}  {line.state}\n")
    sys.stdout.write(f"mode: {_mode(held) or 'none'}\n")
    sys.stdout.write(f"engines: {', '.join(held.served if held else ()) or 'none'}\n")
    told = why and all(line.good or line.later for line in lines)  # else it stands above
    sys.stdout.write(f"ready: {f'no ({why})' if told else 'no' if why else 'yes'}\n")


def told(host: Host, options: Options) -> tuple[Line, ...]:
    """Return the lines of what is held; none where nothing is installed.

    Raises:
        InstallerError: the ledger cannot be read, or it is not plain which installation is meant.
    """
    options = elsewhere(host, options, tell=False)
    ignores = options.drift is Drift.IGNORE
    return tuple(held_lines(host, options, _held(host, options.layout), deep=False, ignores=ignores))


def judged(host: Host, options: Options) -> tuple[bool, bool]:
    """Return whether the files of ours are all good, and whether nothing keeps the node from being ready."""
    with suppress(InstallerError):
        files = told(host, options)
        options = elsewhere(host, options, tell=False)
        held, seen = _held(host, options.layout), read_seen(host, options.state_file)
        lines = _among(files, host, options, held, seen)
        return all(line.good for line in files), all(map(_is_well, lines))
    return False, False
