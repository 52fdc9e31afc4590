"""What is wrong with this node, installed or not: every check, what it found, and what to do about it."""

import json
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Final

import click
from msgspec.structs import replace

from installer.change.ledger import read_record
from installer.change.lost import elsewhere
from installer.errors import Exit, InstallerError
from installer.host.files import Host
from installer.lifecycle.installation import read_installation
from installer.model.options import Options
from installer.model.record import Record
from installer.nri import state as plugin_state
from installer.report.doctor import CHECKS, Finding, findings
from installer.report.doctor.programs import TABLE_DATE
from installer.report.doctor.read_node import examine
from installer.report.doctor.read_programs import unit_state
from installer.report.doctor.verdict import Level

SCHEMA: Final = 1  # of the JSON: only ever added to
COLOURS: Final = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red", Level.NONE: "bright_black"}
NAMES: Final = max(len(check.name) for check in CHECKS)
INDENT: Final = NAMES + 9  # level and name of a check
NARROWEST: Final = 60
WIDEST: Final = 120


def doctor(options: Options, *, as_json: bool) -> Exit:
    """Print what each check comes to; FAILED where one is bad. Nothing is changed, locked or started."""
    host = Host.under(options.host_root, options.mounts)
    held = _record(host, options)
    node = replace(
        examine(host, options),
        held=_held(host, options),
        by_cdi=held.cdi,
        plugin=tuple((state, good) for _, state, good, _ in plugin_state.lines(host, options.nri, held)),
        configured={row.name: (row.unit, unit_state(host, row.unit)) for row in held.engines},
    )
    found = findings(node)
    if as_json:
        sys.stdout.write(json.dumps(_document(found), indent=2) + "\n")
    else:
        width = min(max(shutil.get_terminal_size((WIDEST, 0)).columns, NARROWEST), WIDEST)
        for line in lines_of(found, width):
            click.echo(line)
    return Exit.FAILED if _worst(found) is Level.BAD else Exit.OK


def _held(host: Host, options: Options) -> tuple[tuple[str, str, bool], ...]:
    """Return what ``status`` says of our own installation; a ledger that cannot be read is one bad line."""
    try:
        return tuple((line.what, line.state, line.good) for line in read_installation(host, options).files)
    except InstallerError as error:
        return (("status", error.problem, False),)


def _record(host: Host, options: Options) -> Record:
    """Return what is held; what cannot be read is told by ``_held``."""
    with suppress(InstallerError):
        return read_record(host, elsewhere(host, options, tell=False).layout) or Record()
    return Record()


def _worst(found: Sequence[Finding]) -> Level:
    levels = {finding.verdict.level for finding in found}
    return next((level for level in (Level.BAD, Level.WARN) if level in levels), Level.OK)


def _document(found: Sequence[Finding]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "verdict": str(_worst(found)),
        "holes_known_until": TABLE_DATE,
        "checks": [
            {
                "name": finding.check.name,
                "group": finding.check.group,
                "level": str(finding.verdict.level),
                "found": finding.verdict.found,
                "remedy": finding.remedy if finding.wrong else None,
                "seen_in": list(finding.check.seen),
            }
            for finding in found
        ],
    }


def lines_of(found: Sequence[Finding], width: int) -> Iterator[str]:
    """Yield the table: a block for each group, the remedy below what is wrong."""
    for group, each in groupby(found, key=lambda finding: finding.check.group):
        yield click.style(group, bold=True)
        for finding in each:
            yield from _lines(finding, width)
    count = Counter(finding.verdict.level for finding in found)
    yield ", ".join(f"{count[level]} {level}" for level in Level)


def _lines(finding: Finding, width: int) -> Iterator[str]:
    level = finding.verdict.level
    shown = click.style(f"{level:<4}", fg=COLOURS[level], bold=finding.wrong)
    first, *rest = _wrapped(finding.verdict.found, width)
    yield f"  {shown}  {finding.check.name:<{NAMES}} {first}"
    yield from (" " * INDENT + line for line in rest)
    if finding.wrong:
        words = f"do: {finding.remedy}"
        words += f" (seen in {', '.join(finding.check.seen)})" if finding.check.seen else ""
        yield from (" " * INDENT + line for line in _wrapped(words, width))


def _wrapped(text: str, width: int) -> list[str]:
    safe = "".join(letter if letter.isprintable() else "?" for letter in text)
    return textwrap.wrap(safe, width - INDENT, break_on_hyphens=False) or [""]
