"""What a check says: a level, what was found, what to do."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from installer.model.facts import list_some


class Level(StrEnum):
    """What a check comes to; NONE where it does not apply, or cannot be made from here."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    NONE = "n/a"


class Verdict(Struct, frozen=True):
    """What one check found on one node; ``remedy`` is what to do here, "" where that of the check fits."""

    level: Level
    found: str
    remedy: str = ""


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


def judge(wrong: Sequence[str], problem: str, fine: str, level: Callable[[str], Verdict] = bad) -> Verdict:
    """Return ``problem`` and the first few of what is ``wrong``, or that all is well if nothing is."""
    return level(problem + list_words(wrong)) if wrong else ok(fine)


def list_words(words: Sequence[str]) -> str:
    """Return the first few of many words."""
    return list_some(words, SHOWN)


def spell_version(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))
