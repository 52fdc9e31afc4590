"""``doctor``: every check on this node, installed or not, what it found, and what to do about it."""

import json
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from itertools import chain, groupby
from typing import Final

import click
from msgspec import Struct

from installer.errors import Exit
from installer.host.files import Host
from installer.model.options import Options
from installer.report.doctor import programs, system
from installer.report.doctor.model import Judge, Level, Node, Verdict
from installer.report.doctor.read import read_node

TABLE: Final = tomllib.loads(files(__package__).joinpath("checks.toml").read_text())
FUNCTIONS: Final = {**vars(system), **vars(programs)}
SCHEMA: Final = 1  # of the JSON: only ever added to
COLOURS: Final = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red", Level.NONE: "bright_black"}
NARROWEST: Final = 60
WIDEST: Final = 120


class Check(Struct, frozen=True):
    """One check of the table; its name never changes, and ``seen`` are public reports of the same."""

    name: str
    group: str
    remedy: str
    judge: Judge
    seen: tuple[str, ...]


class Finding(Struct, frozen=True):
    """A check and its verdict."""

    check: Check
    verdict: Verdict

    @property
    def wrong(self) -> bool:
        """Whether something is to be done about it."""
        return self.verdict.level in (Level.WARN, Level.BAD)

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.verdict.remedy or self.check.remedy


CHECKS: Final = tuple(
    Check(
        name, group, row["remedy"], FUNCTIONS[f"check_{name.replace('-', '_')}"], tuple(row.get("seen", ()))
    )
    for group, rows in TABLE["checks"].items()
    for name, row in rows.items()
)
NAMES: Final = max(len(check.name) for check in CHECKS)
INDENT: Final = NAMES + 9  # level and name of a check


def judge_node(node: Node) -> tuple[Finding, ...]:
    """Return what each check comes to, in the order of the table."""
    return tuple(Finding(check, check.judge(node)) for check in CHECKS)


def doctor(options: Options, columns: int, *, as_json: bool, show_all: bool = False) -> Exit:
    """Print what is wrong, then what is good; FAILED where a check is bad. The node is only read.

    What does not apply is shown where ``show_all``.
    """
    findings = judge_node(read_node(Host.under(options.host_root, options.mounts), options))
    count = Counter(finding.verdict.level for finding in findings)
    worst = next((level for level in (Level.BAD, Level.WARN) if count[level]), Level.OK)
    if as_json:
        checks = [
            {
                "name": each.check.name,
                "group": each.check.group,
                "level": each.verdict.level,
                "found": each.verdict.found,
                "remedy": each.remedy if each.wrong else None,
                "seen_in": each.check.seen,
            }
            for each in findings
        ]
        head = {"schema": SCHEMA, "verdict": worst, "holes_known_until": programs.TABLE_DATE}
        sys.stdout.write(json.dumps({**head, "checks": checks}, indent=2) + "\n")
    else:
        bad_first = sorted(
            (each for each in findings if each.wrong), key=lambda each: each.verdict.level != worst
        )
        others = (
            each for each in findings if not each.wrong and (show_all or each.verdict.level is not Level.NONE)
        )
        sections = [("To be done", bad_first)] if bad_first else []
        for title, section in chain(sections, groupby(others, key=lambda finding: finding.check.group)):
            click.echo(click.style(title, bold=True))
            for line in (line for finding in section for line in _lines(finding, columns)):
                click.echo(line)
        hidden = "" if show_all or not count[Level.NONE] else " (--all shows them)"
        click.echo(f"{', '.join(f'{count[level]} {level}' for level in Level)}{hidden}")
    return Exit.FAILED if worst is Level.BAD else Exit.OK


def _lines(finding: Finding, columns: int) -> Iterator[str]:
    """Yield what was found, and the remedy below what is wrong."""
    level, width = finding.verdict.level, min(max(columns, NARROWEST), WIDEST) - INDENT
    words = [finding.verdict.found]
    if finding.wrong:
        seen = f" (seen in {', '.join(finding.check.seen)})" if finding.check.seen else ""
        words.append(f"do: {finding.remedy}{seen}")
    safe = ["".join(each if each.isprintable() else "?" for each in text) for text in words]
    lines = [textwrap.wrap(text, width, break_on_hyphens=False) or [""] for text in safe]
    shown = click.style(f"{level:<4}", fg=COLOURS[level], bold=finding.wrong)
    first, *rest = chain(*lines)
    yield f"  {shown}  {finding.check.name:<{NAMES}} {first}"
    yield from (" " * INDENT + line for line in rest)
