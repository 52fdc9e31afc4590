"""The table of all checks: the texts of checks.toml, and the function that judges each."""

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from itertools import groupby
from typing import Final

from msgspec import Struct

from installer.report.doctor import cdi, engines, programs, system
from installer.report.doctor.model import Judge, Node
from installer.report.doctor.verdict import Level, Verdict

TABLE: Final = tomllib.loads(files(__package__).joinpath("checks.toml").read_text())
VALUES: Final = {"date": programs.TABLE_DATE, "full": system.FULL, "nearly": system.NEARLY}
FUNCTIONS: Final = {**vars(system), **vars(cdi), **vars(programs), **vars(engines)}


class Check(Struct, frozen=True):
    """One check; its ``name`` never changes.

    ``looks_at`` and ``wrong_when`` are for the document, ``remedy`` for who meets it. ``seen`` are public
    reports of the same.
    """

    name: str
    group: str
    looks_at: str
    wrong_when: str
    remedy: str
    judge: Judge
    seen: tuple[str, ...]


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


CHECKS: Final = tuple(
    Check(
        name,
        group,
        row["looks_at"],
        row["wrong_when"].format(**VALUES),
        row["remedy"],
        FUNCTIONS[f"check_{name.replace('-', '_')}"],
        tuple(row.get("seen", ())),
    )
    for group, rows in TABLE["checks"].items()
    for name, row in rows.items()
)


def judge_node(node: Node) -> tuple[Finding, ...]:
    """Return what each check comes to, in the order of the table."""
    return tuple(Finding(check, check.judge(node)) for check in CHECKS)


def document() -> str:
    """Return the page."""
    head = str(TABLE["head"]).format(**VALUES)
    return head + "".join(_sections()) + f"\n{len(CHECKS)} checks.\n"


def _sections() -> Iterator[str]:
    for group, checks in groupby(CHECKS, key=lambda check: check.group):
        yield f"\n## {group}\n\n| check | looks at | wrong when | remedy | seen in |\n|---|---|---|---|---|\n"
        for check in checks:
            seen = ", ".join(check.seen) or "-"
            cells = (f"`{check.name}`", check.looks_at, check.wrong_when, check.remedy, seen)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
