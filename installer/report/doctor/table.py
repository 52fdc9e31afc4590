"""The table of all checks: the texts of checks.toml, and the function that judges each."""

import tomllib
from importlib.resources import files
from typing import Final

from msgspec import Struct

from installer.report.doctor import cdi, engines, programs, system
from installer.report.doctor.model import Judge, Node
from installer.report.doctor.verdict import Level, Verdict

TABLE: Final = tomllib.loads(files(__package__).joinpath("checks.toml").read_text())
FUNCTIONS: Final = {**vars(system), **vars(cdi), **vars(programs), **vars(engines)}


class Check(Struct, frozen=True):
    """One check; its name never changes."""

    name: str
    group: str
    remedy: str
    judge: Judge
    seen: tuple[str, ...]  # public reports of the same


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
