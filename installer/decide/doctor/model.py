"""A check is a row: what it looks at, what would be wrong, what to do, and the function that judges."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from installer.decide.data import dataclass
from installer.decide.doctor.facts import Node


class Level(StrEnum):
    """What a check comes to; NONE where it does not apply, or nobody can tell from here."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    NONE = "n/a"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found on one node; ``remedy`` is what to do here, "" where that of the check fits."""

    level: Level
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check; ``name`` never changes, ``worst`` is the worst level that it can come to.

    ``looks_at`` and ``wrong_when`` are for the document, ``remedy`` for who meets it. ``seen`` are public
    reports of the same.
    """

    name: str
    group: str
    looks_at: str
    wrong_when: str
    remedy: str
    judge: Callable[[Node], Verdict]
    worst: Level = Level.BAD
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
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


SHOWN: Final = 4


def ok(found: str) -> Verdict:
    """Return that all is well."""
    return Verdict(Level.OK, found)


def warn(found: str) -> Verdict:
    """Return that something may become a problem."""
    return Verdict(Level.WARN, found)


def bad(found: str, remedy: str = "") -> Verdict:
    """Return that something is wrong, and what to do where the check's remedy is too general."""
    return Verdict(Level.BAD, found, remedy)


def none(reason: str) -> Verdict:
    """Return that the check does not apply, or cannot be made from here."""
    return Verdict(Level.NONE, reason)


def listed(words: "tuple[str, ...] | list[str]") -> str:
    """Return the first few of many words."""
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))
