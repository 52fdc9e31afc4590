"""The uppermost table of a YAML text, as far as it takes to tell what a CDI specification is of.

An engine reads the first document alone, and takes keys in any case. There is no parser of YAML in the image,
and a whole one is not needed: what is not read here is told to be unread, and never taken for something else.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from installer.decide.pattern import pattern

KEPT: Final = 1000  # of a value: a kind and a version are shorter, and devices only have to be some
EMPTY: Final = frozenset({"", "[]", "{}", "[ ]", "{ }", "null", "~"})
_MARK: Final = pattern(r"(---|\.\.\.)(?=\s|$)")
_NO_CONTENT: Final = pattern(r"\s*(#|$)")
_KEY: Final = pattern(r"""([\w.-]+|"[^"]*"|'[^']*')\s*:(|\s.*)$""")
_COMMENT: Final = pattern(r"(?<!\S)#.*")
_PROPERTIES: Final = pattern(r"(?:[&!]\S*(?:\s+|$))+")  # an anchor, a tag: they change no value of ours
_TOKEN: Final = pattern(
    r"""(?P<blank>\s+|(?:(?<=\s)|^)\#[^\n]*)|(?P<mark>[{}\[\],])|(?P<colon>(?<=["']):|:(?=[\s,\[\]{}]|$))"""
    r"""|(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')"""
    r"""|(?P<plain>(?:[^\s,\[\]{}:"']|:(?![\s,\[\]{}]|$)|(?<=[^\s,\[\]{}:])["'])+)""",
    re.DOTALL,
)


def top_of_yaml(text: str) -> dict[str, str]:
    """Return what stands behind each key of the uppermost table, in lower case; "" for what is empty.

    Raises:
        ValueError: it is said in a way that is not read here, or it is no table.
    """
    lines = [*_first_document(text.removeprefix("\ufeff"))]
    in_braces = bool(lines) and lines[0].lstrip().startswith("{")
    found = _flow("\n".join(lines).strip()) if in_braces else _block(lines)
    if "<<" in found or any(value.startswith("*") for value in found.values()):
        raise ValueError("what it says stands somewhere else in it")
    return {key.lower(): "" if value in EMPTY else value for key, value in found.items()}


def _first_document(text: str) -> Iterator[str]:
    begun = False
    for line in text.splitlines():
        if mark := _MARK.match(line):
            if begun:
                return
            line = line[mark.end() :]  # noqa: PLW2901 - content may stand behind the mark
        if _NO_CONTENT.match(line) or (not begun and line.startswith("%")):
            continue
        begun = True
        yield line


def _block(lines: list[str]) -> dict[str, str]:
    """Return the table of lines with a key each, whose values may go on in the lines that follow."""
    depth = len(lines[0]) - len(lines[0].lstrip(" ")) if lines else 0
    found: dict[str, str] = {}
    key = ""
    for line in lines:
        top = _KEY.match(line[depth:]) if not line[:depth].strip(" ") else None
        if top is not None:
            key = top[1].strip("\"'")
            found[key] = _plain(_PROPERTIES.sub("", top[2].strip(), count=1))
        elif key and line[depth : depth + 1] != "?":
            if len(found[key]) < KEPT:
                found[key] = f"{found[key].lstrip('>|-+')} {_plain(line)}".strip()
        else:
            raise ValueError(f"{line!r} has no plain key")
    return found


def _plain(value: str) -> str:
    """Return one value without its quotes and the comment behind it."""
    value = _COMMENT.sub("", value).strip()
    if value[:1] == value[-1:] == '"' and len(value) > 1:
        with suppress(ValueError):
            return str(json.loads(value))
    return value.strip("'")


def _flow(text: str) -> dict[str, str]:
    """Return the table in braces: a key, a colon, and a value that may be a table or a list."""
    found: dict[str, str] = {}
    key, words, depth, at = "", list[str](), 0, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (at and not depth and token.lastgroup != "blank"):
            raise ValueError(f"nothing is known of what begins with {text[at : at + 20]!r}")
        at, word = token.end(), token[0]
        depth += (word in {"{", "["}) - (word in {"}", "]"}) if token.lastgroup == "mark" else 0
        if depth == 1 and token.lastgroup == "colon" and not key:
            key, words = " ".join(words), []
        elif (depth, word) in {(1, ","), (0, "}")}:
            if key or words:
                found[key or " ".join(words)] = " ".join(words) if key else ""
            key, words = "", []
        elif not (depth == 1 and word == "{" and not found and not key and not words):
            words += _words(token)
    if depth:
        raise ValueError("it does not come to an end")
    return found


def _words(token: re.Match[str]) -> list[str]:
    if token.lastgroup == "blank" or (token.lastgroup == "plain" and token[0][0] in "&!"):
        return []
    return [_plain(token[0])] if token.lastgroup == "quoted" else [token[0]]
