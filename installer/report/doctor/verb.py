"""``doctor``: every check on this node, installed or not, what it found, and what to do about it."""

import json
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from itertools import chain, groupby
from typing import Final

import click
from msgspec import Struct, to_builtins

from installer.errors import Exit, InstallerError
from installer.host.files import Host
from installer.host.kernel import may_read_all
from installer.lifecycle.drift import RECONCILE
from installer.model.options import Options
from installer.report.doctor import programs, system
from installer.report.doctor.model import ROOT, Level, Node, Verdict
from installer.report.doctor.read import read_node

TABLE: Final = tomllib.loads(files(__package__).joinpath("checks.toml").read_text())
FUNCTIONS: Final = {**vars(system), **vars(programs)}
SCHEMA: Final = 1  # of the JSON: only ever added to
COLOURS: Final = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red", Level.NONE: "bright_black"}
NARROWEST: Final = 60
WIDEST: Final = 120


class Finding(Struct, frozen=True):
    """What one check of the table comes to, as a program reads it; ``seen_in`` are reports of the same."""

    name: str  # which never changes
    group: str
    level: Level
    found: str
    remedy: str | None  # None where nothing is wrong
    seen_in: tuple[str, ...]


CHECKS: Final = {name: (group, row) for group, rows in TABLE["checks"].items() for name, row in rows.items()}
NAMES: Final = max(map(len, CHECKS))
INSTALL: Final = re.compile("`toolkit-installer install[^`]*`")
INDENT: Final = NAMES + 9  # level and name of a check


def judge_node(node: Node) -> Iterator[Finding]:
    """Yield what each check comes to, in the order of the table."""
    for name, (group, row) in CHECKS.items():
        verdict: Verdict = FUNCTIONS[f"check_{name.replace('-', '_')}"](node)
        remedy = verdict.remedy or row["remedy"] if verdict.level in (Level.WARN, Level.BAD) else None
        if remedy and node.run_waits:
            remedy = INSTALL.sub(f"`{RECONCILE}`", remedy)
        yield Finding(name, group, verdict.level, verdict.found, remedy, tuple(row.get("seen", ())))


def doctor(options: Options, columns: int, *, as_json: bool, show_all: bool = False) -> Exit:
    """Print what is wrong, then what is good; FAILED where a check is bad. The node is only read.

    What does not apply is shown where ``show_all``. InstallerError: we are not root, to whom the files and
    sockets of an engine would seem to be missing.
    """
    host = Host.under(options.host_root, options.mounts)
    if not may_read_all(host.local_path(ROOT)):
        problem = "check this node (only root can read all of it)"
        remedy = "run as root: sudo toolkit-installer doctor"
        raise InstallerError(problem, remedy=remedy, code="file-operation-failed")
    findings = [*judge_node(read_node(host, options))]
    count = Counter(finding.level for finding in findings)
    worst = next((level for level in (Level.BAD, Level.WARN) if count[level]), Level.OK)
    if as_json:
        head = {"schema": SCHEMA, "verdict": worst, "holes_known_until": programs.TABLE_DATE}
        sys.stdout.write(json.dumps({**head, "checks": to_builtins(findings)}, indent=2) + "\n")
    else:
        bad_first = sorted((each for each in findings if each.remedy), key=lambda each: each.level != worst)
        shown = {*Level} if show_all else {*Level} - {Level.NONE}
        others = (each for each in findings if not each.remedy and each.level in shown)
        sections = [("To be done", bad_first)] if bad_first else []
        for title, section in chain(sections, groupby(others, key=lambda finding: finding.group)):
            click.echo(click.style(title, bold=True))
            for line in (line for finding in section for line in _lines(finding, columns)):
                click.echo(line)
        hidden = "" if show_all or not count[Level.NONE] else " (--all shows them)"
        click.echo(f"{', '.join(f'{count[level]} {level}' for level in Level)}{hidden}")
    return Exit.FAILED if worst is Level.BAD else Exit.OK


def _lines(finding: Finding, columns: int) -> Iterator[str]:
    """Yield what was found, and the remedy below what is wrong."""
    level, width = finding.level, min(max(columns, NARROWEST), WIDEST) - INDENT
    words = [finding.found]
    if finding.remedy:
        seen = f" (seen in {', '.join(finding.seen_in)})" if finding.seen_in else ""
        words.append(f"do: {finding.remedy}{seen}")
    safe = ["".join(each if each.isprintable() else "?" for each in text) for text in words]
    lines = [textwrap.wrap(text, width, break_on_hyphens=False) or [""] for text in safe]
    shown = click.style(f"{level:<4}", fg=COLOURS[level], bold=bool(finding.remedy))
    first, *rest = chain(*lines)
    yield f"  {shown}  {finding.name:<{NAMES}} {first}"
    yield from (" " * INDENT + line for line in rest)
