"""What is wrong with this node, installed or not: every check, what it found, and what to do about it."""

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import click

from installer.errors import Exit
from installer.host.files import Host
from installer.model.options import Options
from installer.report.doctor.programs import TABLE_DATE
from installer.report.doctor.read_node import read_node
from installer.report.doctor.table import CHECKS, Finding, judge_node
from installer.report.doctor.verdict import Level

SCHEMA: Final = 1  # of the JSON: only ever added to
COLOURS: Final = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red", Level.NONE: "bright_black"}
NAMES: Final = max(len(check.name) for check in CHECKS)
INDENT: Final = NAMES + 9  # level and name of a check
NARROWEST: Final = 60
WIDEST: Final = 120


def doctor(options: Options, columns: int, *, as_json: bool) -> Exit:
    """Print what each check comes to; FAILED where one is bad. Nothing is changed, locked or started."""
    findings = judge_node(read_node(Host.under(options.host_root, options.mounts), options))
    levels = {finding.verdict.level for finding in findings}
    worst = next((level for level in (Level.BAD, Level.WARN) if level in levels), Level.OK)
    if as_json:
        checks = [_row(finding) for finding in findings]
        document = {
            "schema": SCHEMA,
            "verdict": str(worst),
            "holes_known_until": TABLE_DATE,
            "checks": checks,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        for line in _table(findings, min(max(columns, NARROWEST), WIDEST)):
            click.echo(line)
    return Exit.FAILED if worst is Level.BAD else Exit.OK


def _row(finding: Finding) -> dict[str, object]:
    return {
        "name": finding.check.name,
        "group": finding.check.group,
        "level": str(finding.verdict.level),
        "found": finding.verdict.found,
        "remedy": finding.remedy if finding.wrong else None,
        "seen_in": list(finding.check.seen),
    }


def _table(findings: Sequence[Finding], width: int) -> Iterator[str]:
    """Yield a block for each group, the remedy below what is wrong."""
    for group, each in groupby(findings, key=lambda finding: finding.check.group):
        yield click.style(group, bold=True)
        for finding in each:
            yield from _lines(finding, width)
    count = Counter(finding.verdict.level for finding in findings)
    yield ", ".join(f"{count[level]} {level}" for level in Level)


def _lines(finding: Finding, width: int) -> Iterator[str]:
    level = finding.verdict.level
    shown = click.style(f"{level:<4}", fg=COLOURS[level], bold=finding.wrong)
    first, *rest = _wrap(finding.verdict.found, width)
    yield f"  {shown}  {finding.check.name:<{NAMES}} {first}"
    if finding.wrong:
        words = f"do: {finding.remedy}"
        words += f" (seen in {', '.join(finding.check.seen)})" if finding.check.seen else ""
        rest += _wrap(words, width)
    yield from (" " * INDENT + line for line in rest)


def _wrap(text: str, width: int) -> list[str]:
    safe = "".join(letter if letter.isprintable() else "?" for letter in text)
    return textwrap.wrap(safe, width - INDENT, break_on_hyphens=False) or [""]
