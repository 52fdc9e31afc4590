"""What is wrong with a node, installed or not: read, then judged by a table of pure functions.

It may import every room but ``cli``. Begin here: the texts of checks.toml, and who judges.
"""

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from itertools import groupby
from typing import Final

from msgspec import Struct

from installer.report.doctor import cdi, engines, programs, system
from installer.report.doctor.model import Judge, Node
from installer.report.doctor.verdict import Level, Verdict

JUDGES: Final = {**system.JUDGES, **cdi.JUDGES, **programs.JUDGES, **engines.JUDGES}
TABLE: Final = tomllib.loads(files(__package__).joinpath("checks.toml").read_text())
VALUES: Final = {"date": programs.TABLE_DATE, "full": system.FULL, "nearly": system.NEARLY}


class Check(Struct, frozen=True):
    """One check; ``name`` never changes, ``worst`` is the worst level that it can come to.

    ``looks_at`` and ``wrong_when`` are for the document, ``remedy`` for who meets it. ``seen`` are public
    reports of the same.
    """

    name: str
    group: str
    looks_at: str
    wrong_when: str
    remedy: str
    judge: Judge
    worst: Level = Level.BAD
    seen: tuple[str, ...] = ()


class Finding(Struct, frozen=True):
    """A check and its verdict."""

    check: Check
    verdict: Verdict

    @property
    def wrong(self) -> bool:
        """Tell whether something is to be done about it."""
        return self.verdict.level in (Level.WARN, Level.BAD)

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.verdict.remedy or self.check.remedy


def _checks() -> Iterator[Check]:
    for group, rows in TABLE["checks"].items():
        for name, row in rows.items():
            yield Check(
                name,
                group,
                row["looks_at"],
                row["wrong_when"].format(**VALUES),
                row["remedy"],
                JUDGES[name],
                Level(row.get("worst", Level.BAD)),
                tuple(row.get("seen", ())),
            )


CHECKS: Final = tuple(_checks())


def findings(node: Node) -> tuple[Finding, ...]:
    """Return what each check comes to, in the order of the table."""
    return tuple(Finding(check, check.judge(node)) for check in CHECKS)


def document() -> str:
    """Return the page."""
    head = str(TABLE["head"]).format(**VALUES)
    return head + "".join(_sections()) + f"\n{len(CHECKS)} checks.\n"


def _sections() -> Iterator[str]:
    for group, checks in groupby(CHECKS, key=lambda check: check.group):
        yield f"\n## {group}\n\n| check | looks at | wrong when | remedy | seen in |\n|---|---|---|---|---|\n"
        yield from map(_row, checks)


def _row(check: Check) -> str:
    cells = (f"`{check.name}`", check.looks_at, check.wrong_when, check.remedy, ", ".join(check.seen) or "-")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
