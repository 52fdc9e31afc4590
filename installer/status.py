"""What is installed, drifted or pending: from the ledger and the files alone, cheap enough for a probe."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from installer import looked
from installer.decide.data import replace
from installer.decide.errors import Exit, InstallerError
from installer.decide.layout import Layout
from installer.decide.nri.wishes import DEFAULT_SOCKET
from installer.decide.options import Drift, Options
from installer.decide.rows import Record
from installer.flags import FLAGS, PID_FILE, options_from
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

USED: Final = frozenset({"install_dir", "host_root", "mount", "pid_file", "nri_socket"})
# Under a host root, a default is a path of the host's; what somebody gives is one as this process sees it.
DEFAULTS: Final = {"pid_file": str(PID_FILE), "nri_socket": str(DEFAULT_SOCKET)}
RECONCILE_REPAIRS: Final = f"{looked.RECONCILE} puts it right"


def main(argv: Sequence[str]) -> int:
    """Print what is held on this host; return 0 where all is good, 1 where not, 3 where nothing is held."""
    arguments = _parser().parse_args(argv[1:])
    try:
        values = {flag.field: getattr(arguments, flag.field, flag.default) for flag in FLAGS}
        options = options_from(values, frozenset(name for name in DEFAULTS if values[name] != DEFAULTS[name]))
        host = Host.under(options.host_root, options.mounts)
        if arguments.alive:
            return Exit.OK if is_held_pidfile(str(host.local_path(options.pid_file))) else Exit.FAILED
        options = elsewhere(host, options, tell=False)
        held = _held(host, options.layout)
        ready = is_ready(host, options.ready_file)
        seen = read_seen(host, options.state_file)
        ignores = seen is not None and seen.current and seen.ignores
        found = held_lines(host, options, held, deep=arguments.deep, ignores=ignores)
        by_run = [Line(*each) for each in looked.lines(seen)]  # it knows more than the files tell
        lines = [*by_run, *(_to_ask(line, seen) for line in found)] if held else [*found]
        lines += [Line(*each) for each in nri_lines(host, options.nri, held)]
        why = next((f"{line.what}: {line.state}" for line in lines if not (line.good or line.later)), "")
        if not (why or ready):
            why = looked.not_proven(host, options.pid_file, held, seen)
    except InstallerError as error:
        sys.stderr.write(f"toolkit-installer: {error}\n")
        return error.exit
    if arguments.ready:
        sys.stdout.write(f"{why}\n" if why else "")  # Kubernetes shows it in the event of a failed probe
        return Exit.FAILED if why else Exit.OK
    _print(lines, held, seen, why, as_json=arguments.json)
    if held is None and not lines:
        return Exit.NOTHING_INSTALLED
    return Exit.OK if all(line.good for line in lines) else Exit.FAILED


def _held(host: Host, layout: Layout) -> Record | None:
    held = read_record(host, layout)
    return held and with_put_back(host, still_ours(host, layout, held))


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


def _default(field: str, environment: Mapping[str, str] = os.environ) -> Any:
    flag = next(flag for flag in FLAGS if flag.field == field)
    value = environment.get(flag.variable)
    if not value:
        return list(flag.default) if isinstance(flag.default, tuple) else flag.default
    return value.split(",") if isinstance(flag.default, tuple) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="toolkit-installer status", description="Tell what is installed, drifted or pending."
    )
    probes = parser.add_mutually_exclusive_group()
    probes.add_argument(
        "--ready",
        action="store_true",
        help="Only tell, by exit code 0 or 1, whether run is ready, and why not.",
    )
    probes.add_argument(
        "--alive", action="store_true", help="Only tell, by exit code 0 or 1, whether run holds its pidfile."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument(
        "--deep", action="store_true", help="Read the installed programs, and compare their digests."
    )
    for flag in FLAGS:
        if flag.field in USED:
            action = "append" if isinstance(flag.default, tuple) else "store"
            parser.add_argument(
                flag.name,
                action=action,
                default=_default(flag.field),
                metavar=flag.metavar,
                help=f"{flag.help} [env: {flag.variable}]",
            )
    return parser


def told(host: Host, options: Options) -> tuple[Line, ...]:
    """Return the lines that ``status`` prints; none where nothing is installed.

    Raises:
        InstallerError: the ledger cannot be read, or it is not plain which installation is meant.
    """
    options = elsewhere(host, options, tell=False)
    held = _held(host, options.layout)
    ignores = options.drift is Drift.IGNORE
    return tuple(held_lines(host, options, held, deep=False, ignores=ignores))
