"""``doctor``: run all checks on this node, installed or not, and print the findings with their remedies."""

import json
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, Final

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
SCHEMA: Final = 1  # of the JSON, to which fields are only added
COLOURS: Final = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red", Level.NONE: "bright_black"}
NARROWEST: Final = 60
WIDEST: Final = 120


def _list_checks() -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """Yield the name of each check with its group and its row in the table."""
    for group, rows in TABLE["checks"].items():
        for name, row in rows.items():
            yield name, (group, row)


CHECKS: Final = dict(_list_checks())
NAMES: Final = max(map(len, CHECKS))
INSTALL: Final = re.compile("`toolkit-installer install[^`]*`")
INDENT: Final = NAMES + 9  # level and name of a check


class Finding(Struct, frozen=True):
    """The finding of one check, as programs read the JSON.

    Attributes:
        name: The name of the check, which never changes.
        group: The heading of the check.
        level: The result.
        found: The observation, as a sentence.
        remedy: The act that helps; None without a problem.
        seen_in: Public reports of the same problem.
    """

    name: str
    group: str
    level: Level
    found: str
    remedy: str | None
    seen_in: tuple[str, ...]


def judge_node(node: Node) -> Iterator[Finding]:
    """Yield the finding of each check, in the order of the table."""
    for name, (group, row) in CHECKS.items():
        check = FUNCTIONS[f"check_{name.replace('-', '_')}"]
        verdict: Verdict = check(node)
        remedy: str | None = None
        if verdict.level in (Level.WARN, Level.BAD):
            remedy = verdict.remedy or row["remedy"]
        if remedy and node.run_waits:
            remedy = INSTALL.sub(f"`{RECONCILE}`", remedy)
        seen_in = tuple(row.get("seen", ()))
        yield Finding(name, group, verdict.level, verdict.text, remedy, seen_in)


def doctor(options: Options, columns: int, *, as_json: bool, show_all: bool = False) -> Exit:
    """Print the problems of the node, then the good findings; the node is only read.

    Args:
        options: The options of the command.
        columns: The width of the terminal.
        as_json: Print a document for programs.
        show_all: Print the checks that do not apply, too.

    Returns:
        FAILED if a check is bad.

    Raises:
        InstallerError: The user is not root, to whom the files and sockets of an engine would seem missing.
    """
    host = Host.under(options.host_root, options.mounts)
    if not may_read_all(host.local_path(ROOT)):
        problem = "check this node (only root can read everything that the checks need)"
        remedy = "run as root: sudo toolkit-installer doctor"
        raise InstallerError(problem, remedy=remedy, code="file-operation-failed")

    node = read_node(host, options)
    findings = list(judge_node(node))
    counts = Counter(finding.level for finding in findings)
    worst = Level.OK
    if counts[Level.BAD]:
        worst = Level.BAD
    elif counts[Level.WARN]:
        worst = Level.WARN

    if as_json:
        _print_document(findings, worst)
    else:
        if not node.has_nvidia:
            click.echo("No NVIDIA GPU, no driver and no toolkit were found on this node.")
        _print_text(findings, worst, columns, show_all=show_all)
        hidden = ""
        if counts[Level.NONE] and not show_all:
            hidden = " (--all shows them)"
        totals = ", ".join(f"{counts[level]} {level}" for level in Level)
        click.echo(f"{totals}{hidden}")
    return Exit.FAILED if worst is Level.BAD else Exit.OK


def _print_document(findings: Sequence[Finding], worst: Level) -> None:
    document = {
        "schema": SCHEMA,
        "verdict": worst,
        "holes_known_until": programs.TABLE_DATE,
        "checks": to_builtins(findings),
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _print_text(findings: Sequence[Finding], worst: Level, columns: int, *, show_all: bool) -> None:
    """Print the findings with a remedy, the worst first, then the other findings by their group."""
    sections: dict[str, list[Finding]] = {}
    to_be_done = [finding for finding in findings if finding.remedy]
    if to_be_done:
        worst_first = [finding for finding in to_be_done if finding.level == worst]
        worst_first += [finding for finding in to_be_done if finding.level != worst]
        sections["To be done"] = worst_first
    for finding in findings:
        if not finding.remedy and (show_all or finding.level is not Level.NONE):
            sections.setdefault(finding.group, []).append(finding)

    for title, section in sections.items():
        click.echo(click.style(title, bold=True))
        for finding in section:
            for line in _format_finding(finding, columns):
                click.echo(line)


def _format_finding(finding: Finding, columns: int) -> Iterator[str]:
    """Yield the lines of a finding, and the remedy below."""
    width = min(max(columns, NARROWEST), WIDEST) - INDENT
    lines = _wrap(finding.found, width)
    if finding.remedy:
        remedy = f"do: {finding.remedy}"
        if finding.seen_in:
            remedy += f" (seen in {', '.join(finding.seen_in)})"
        lines += _wrap(remedy, width)

    # None, because click writes an escape for ``bold=False``, too, which our streams would spell out.
    bold = True if finding.remedy else None
    level = click.style(f"{finding.level:<4}", fg=COLOURS[finding.level], bold=bold)
    first, *others = lines
    yield f"  {level}  {finding.name:<{NAMES}} {first}"
    for line in others:
        yield " " * INDENT + line


def _wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text, with ? for characters that a terminal would obey."""
    safe = ""
    for character in text:
        safe += character if character.isprintable() else "?"
    # A path that is longer than a line stays whole: it can be copied.
    return textwrap.wrap(safe, width, break_on_hyphens=False, break_long_words=False) or [""]
