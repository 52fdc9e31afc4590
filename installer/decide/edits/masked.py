"""A config as it may be shown: values under names of secrets and passwords in addresses are masked.

The lines stay what they are, one for one, so that a diff of the texts can be shown in masked lines.
"""

import re
from collections.abc import Iterator
from typing import Final

from installer.decide.edits.model import Syntax
from installer.decide.edits.toml_scan import Node, tables
from installer.decide.edits.tree import TextError

MASK: Final = "***"
_SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|credential|authoriz|cookie|bearer"
    r"|^auths?$|registryauth|(api|access|private|signing|encryption|account)key|^key$|keydata|keypem"
)
_HARMLESS: Final = re.compile(r"(file|path|dir|plugins|endpoint)$")  # where a secret is, or what asks for it
_ADDRESS: Final = re.compile(r"(://)[^\s\"'<>]*@")
_BARE_ADDRESS: Final = re.compile(r"(proxy[^\n]*?[\"'=\s])[^\s\"'/@]+:[^\s\"'/@]+@", re.IGNORECASE)
_COMMENT: Final = re.compile(r"#.*?([\w.-]+)[\"']?\s*[=:]\s*(\S.*)")
_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\s"{}\[\],:]++|[{}\[\],:]')
_PLAIN: Final = frozenset({"true", "false", "null"})

Span = tuple[int, int]


def masked(text: str, syntax: Syntax) -> str:
    """Return ``text`` without its secrets, in as many lines.

    One that is not understood is shown without any value.
    """
    try:
        spans = list(_json(text) if syntax is Syntax.JSON else _toml(text))
    except (TextError, RecursionError):
        return re.sub(r"[^\n]+", MASK, text)
    out, done = [], 0
    for start, end in spans:
        out += [text[done:start], _hidden(text[start:end])]
        done = end
    shown = "".join((*out, text[done:]))
    if syntax is Syntax.TOML:
        shown = _COMMENT.sub(_in_comment, shown)
    return _BARE_ADDRESS.sub(rf"\1{MASK}@", _ADDRESS.sub(rf"\1{MASK}@", shown))


def is_secret(name: str) -> bool:
    """Tell whether a key of this name holds what nobody should read over a shoulder."""
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    return _SECRET.search(word) is not None and _HARMLESS.search(word) is None


def _hidden(literal: str) -> str:
    if literal in _PLAIN:
        return literal
    quote = literal[0] if literal[0] in "\"'" else ""
    return f"{quote}{MASK}{quote}" + "\n" * literal.count("\n")


def _in_comment(match: re.Match[str]) -> str:
    said = match[0]
    return said[: match.start(2) - match.start()] + MASK if is_secret(match[1]) else said


def _toml(text: str) -> Iterator[Span]:
    for table in tables(text, ()):
        above = any(map(is_secret, table.name))
        for pair in table.pairs(text):
            yield from _values(pair.value, secret=above or any(map(is_secret, pair.name)))


def _values(node: Node, *, secret: bool) -> Iterator[Span]:
    """Yield the secrets of a value of TOML: all of it, or what secret names in it hold."""
    if node.pairs is not None:
        for pair in node.pairs:
            yield from _values(pair.value, secret=secret or any(map(is_secret, pair.name)))
    elif node.items is not None:
        for item in node.items:
            yield from _values(item, secret=secret)
    elif secret:
        yield node.start, node.end


def _json(text: str) -> Iterator[Span]:
    """Yield the secrets of a JSON text."""
    above: list[tuple[bool, bool]] = []  # of each bracket that is open: is it an object's, is it secret
    secret = name_follows = False
    for match in _JSON.finditer(text):
        word = match[0]
        if word in "{[":
            above.append((word == "{", secret))
            name_follows = word == "{"
        elif word in "}]":
            del above[-1:]
        elif word == ",":
            name_follows, inherited = above[-1] if above else (False, False)
            secret = inherited
        elif word != ":" and name_follows:
            secret = any(inherited for _, inherited in above[-1:]) or is_secret(word)
            name_follows = False
        elif word != ":" and secret:
            yield match.span()
