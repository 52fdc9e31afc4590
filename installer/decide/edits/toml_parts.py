"""The parts of a TOML text: what its words and lines look like, and the spans of what they make."""

import re
from functools import lru_cache
from typing import Final

from installer.decide.data import dataclass
from installer.decide.edits.model import Key

# Quantifiers are possessive (``*+``): nothing is kept to come back to, so megabytes take no memory.
QUOTED: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:\\.|[^"\\])*+"' + r"|'[^']*+'",
    re.DOTALL,
)
BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
SCALAR: Final = re.compile(r"[^\s,\[\]{}#=\"'][^,\]}#\r\n]*+")
SPACE: Final = re.compile(r"[ \t]*")
VOID: Final = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
# Lines that end what they begin: empty ones, comments, and pairs without brackets within brackets. Behind
# a value there can only be a comment. Any other line is left to ``_pair``.
# Each is atomic: Debian 12's Python 3.11.2 goes on where one failed half way (python/cpython#106052).
LINES: Final = r"""(?:(?>
        [ \t\r]*+ (?:\#[^\n]*+)? \n
      | {unless} [ \t]*+ (?:[A-Za-z0-9_.\-]++ | "[^"\\\n]*+" | '[^'\n]*+' | [ \t]++)++ = [ \t]*+
        (?:
            [^\s\[{"'] [^\n]*+
          | "(?!"") (?:[^"\\\n]++ | \\.)*+ " [^\n]*+
          | '(?!'') [^'\n]*+ ' [^\n]*+
          | \[ (?:[^\[\]{}"'\#\n]++ | "(?!"") (?:[^"\\\n]++ | \\.)*+ " | '(?!'') [^'\n]*+ ')*+ \] [^\n]*+
        ) \n
    ))*+"""
PLAIN_LINES: Final = re.compile(LINES.replace("{unless}", ""), re.VERBOSE)
TO_BRACKET: Final = re.compile(
    rf"""(?>[^"'\#\[\]{{}}]++|\[[^"'\#\[\]{{}}]*+\]|\#[^\n]*+|{QUOTED.pattern})*+[\[\]{{}}]""", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Node:
    """The span of a value, of its ``items`` if it is an array, its ``pairs`` if an inline table."""

    start: int
    end: int
    items: tuple["Node", ...] | None = None
    pairs: tuple["Pair", ...] | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """``name = value``; ``raw`` is the name's parts as they are written."""

    name: Key
    raw: Key
    start: int
    value: Node


@lru_cache(maxsize=64)
def lines_of_others(first: str) -> re.Pattern[str]:
    """Return what takes lines as ``PLAIN_LINES`` does, but for those that may be of a name's."""
    unless = rf"""(?![ \t]*+ (?:["'] | {re.escape(first)} (?![A-Za-z0-9_\-]) ))"""
    return re.compile(LINES.replace("{unless}", unless), re.VERBOSE)
