"""Prints what is installed, drifted or pending, for people and for programs."""

import sys
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from installer.errors import Exit
from installer.host.files import Host
from installer.host.locks import is_held_pidfile
from installer.lifecycle.drift import RECONCILE
from installer.lifecycle.installation import (
    REPAIR,
    Installation,
    explain_unproven,
    read_installation,
)
from installer.lifecycle.readiness import LastCheck, is_ready
from installer.model.files import dumps
from installer.model.options import Options
from installer.model.record import Record

Mode = Literal["runtime", "cdi"]
RECONCILE_REPAIRS: Final = f"{RECONCILE} puts it right"


class EngineDocument(Struct, frozen=True):
    """One engine at that look."""

    name: str
    serves: Annotated[
        bool | None, Meta(description="Whether it served our runtimes; null where it was not asked.")
    ]
    since: Annotated[str, Meta(description="Since when that is so, in UTC.")]
    differs: Annotated[str, Meta(description="What it served otherwise.")]
    refused: Annotated[
        str,
        Meta(
            description='Why it would not come up at its next start, though it serves now; "" where it '
            "would. The node is ready all the same."
        ),
    ]


class LookDocument(Struct, frozen=True):
    """A look at the node."""

    time: Annotated[str, Meta(description="When, in UTC.")]
    pid: Annotated[int, Meta(description="The process of run, in its pid namespace.")]
    current: Annotated[
        bool, Meta(description="Whether that process still runs, in this boot: else nobody watches the node.")
    ]
    number: Annotated[int, Meta(description="How many looks there have been in this boot.")]
    asked: Annotated[bool, Meta(description="Whether it was asked for, by reconcile or HUP.")]
    did: Annotated[tuple[str, ...], Meta(description="The steps by which it has repaired the node.")]
    code: Annotated[
        str, Meta(description='What kind of problem there is (docs/troubleshooting.md), "" for none.')
    ]
    problem: Annotated[str, Meta(description='What could not be done; "" where all was as installed.')]
    remedy: Annotated[str, Meta(description="What to do about it.")]
    unmade: Annotated[
        str,
        Meta(
            description="How nvidia-ctk has failed to make the CDI specification of the GPUs although a "
            'driver is loaded; "" where it has not.'
        ),
    ]
    engines: tuple[EngineDocument, ...]


class HeldDocument(Struct, frozen=True):
    """One thing that is held."""

    what: Annotated[str, Meta(description="A path, an engine, or what it is about.")]
    state: Annotated[str, Meta(description="How it is, as a sentence for people.")]
    good: bool


class StatusDocument(Struct, frozen=True):
    """How the node is."""

    installed: Annotated[bool, Meta(description="Whether there is a ledger: without one the exit code is 3.")]
    ready: Annotated[
        bool,
        Meta(
            description="Whether run has proven that the engines serve the runtimes, in this boot, and "
            "nothing held keeps that from being so."
        ),
    ]
    why: Annotated[str, Meta(description='Why it is not ready, in one sentence; "" where it is.')]
    mode: Annotated[
        Mode | None,
        Meta(
            description="How containers get their GPUs: by runtimes of ours, or by CDI alone (--mode "
            "cdi, or nri); null where nothing is installed."
        ),
    ]
    engines: Annotated[
        tuple[str, ...],
        Meta(description="The engines that are configured, or that take devices by CDI as they are."),
    ]
    held: Annotated[
        tuple[HeldDocument, ...],
        Meta(description="What is held on the host; the exit code is 1 if one of these is not good."),
    ]
    look: Annotated[
        LookDocument | None,
        Meta(description="What run saw when it last looked; null where no run has."),
    ]


def check_document(seen: LastCheck | None) -> LookDocument | None:
    """Return the last look for programs; None where there was none."""
    return convert(seen, LookDocument | None, from_attributes=True)


def show_status(options: Options, *, ready: bool, as_json: bool, deep: bool) -> Exit:
    """Print what is held on this host; return 0 where all is good, 1 where not, 3 where nothing is held.

    ``ready`` asks for no more than whether ``run`` is, and why not.
    """
    host = Host.under(options.host_root, options.mounts)
    found = read_installation(host, options, deep=deep)
    record, seen = found.record, found.last_check
    if record and seen and seen.current:  # run keeps an install out, and repairs when it is asked
        lines = (replace(each, state=each.state.replace(REPAIR, RECONCILE_REPAIRS)) for each in found.lines)
        found = replace(found, lines=tuple(lines))
    why = found.obstacle
    if not (why or is_ready(host, options.ready_file, options.pid_file)):
        why = explain_unproven(host, options.pid_file, record, seen)
    if ready:
        sys.stdout.write(f"{why}\n" if why else "")  # Kubernetes shows it in the event of a failed probe
        return Exit.FAILED if why else Exit.OK
    if as_json:
        sys.stdout.write(dumps(_document(found, why), indent=2).decode())
    else:
        _print(found, why)
    if record is None and not found.lines:
        return Exit.NOTHING_INSTALLED
    return Exit.OK if all(line.good for line in found.lines) else Exit.FAILED


def alive(options: Options) -> Exit:
    """Return 0 where ``run`` holds its pidfile, else 1."""
    host = Host.under(options.host_root, options.mounts)
    return Exit.OK if is_held_pidfile(host.local_path(options.pid_file)) else Exit.FAILED


def _mode(record: Record | None) -> Mode | None:
    """Return how engines were set up: nri is cdi with a plugin beside ``run``, whose lines tell of it."""
    if record is None or record.empty:
        return None
    return "cdi" if record.cdi else "runtime"


def _document(found: Installation, why: str) -> StatusDocument:
    return StatusDocument(
        found.record is not None,
        not why,
        why,
        _mode(found.record),
        found.record.served if found.record else (),
        tuple(HeldDocument(line.what, line.state, line.good) for line in found.lines),
        check_document(found.last_check),
    )


def _print(found: Installation, why: str) -> None:
    lines, record = found.lines, found.record
    if record is None and not lines:
        sys.stdout.write("nothing is installed\n")
        return
    width = max((len(line.what) for line in lines), default=0)
    for line in lines:
        sys.stdout.write(f"{'ok ' if line.good else 'BAD'} {line.what:<{width}}  {line.state}\n")
    sys.stdout.write(f"mode: {_mode(record) or 'none'}\n")
    sys.stdout.write(f"engines: {', '.join(record.served if record else ()) or 'none'}\n")
    unsaid = why and not found.obstacle  # else it stands above
    sys.stdout.write(f"ready: {f'no ({why})' if unsaid else 'no' if why else 'yes'}\n")
