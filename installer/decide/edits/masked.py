"""A config as it may be shown: values under names of secrets and passwords in addresses are masked.

The lines stay what they are, one for one, so that a diff of the texts can be shown in masked lines.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from installer.decide.data import dataclass
from installer.decide.edits.model import Syntax
from installer.decide.edits.secrets import (
    MASK,
    announces,
    is_login,
    is_secret,
    plain,
    without_known_secrets,
    without_secrets,
)
from installer.decide.edits.toml_parts import Node, Pair
from installer.decide.edits.toml_scan import tables
from installer.decide.edits.tree import TextError

_COMMENT: Final = re.compile(r"#.*")
_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\s"{}\[\],:]++|[{}\[\],:]')
_PLAIN: Final = frozenset({"true", "false", "null"})
# Of a pair of a name and its value, as in the environment of a Pod: {"name": NAME, "value": VALUE}.
_NAME: Final = frozenset({"name", "key"})
_VALUE: Final = "value"

Span = tuple[int, int, bool]  # of a value, and whether all of it is secret


def masked(text: str, syntax: Syntax) -> str:
    """Return ``text`` without its secrets, in as many lines.

    One that is not understood is shown without any value.
    """
    try:
        # Of megabytes only what is shown otherwise is kept.
        found = {
            (start, end): shown
            for start, end, secret in (_json(text) if syntax is Syntax.JSON else _toml(text))
            if (shown := _shown(text[start:end], secret=secret)) is not None
        }
    except (TextError, RecursionError):
        return re.sub(r"[^\n]+", MASK, text)
    out, done = [], 0
    for (start, end), literal in sorted(found.items()):
        out += [text[done:start], literal]
        done = end
    shown = "".join((*out, text[done:]))
    if syntax is Syntax.TOML:
        shown = _COMMENT.sub(lambda comment: without_secrets(comment[0]), shown)
    return without_known_secrets(shown)


def _shown(literal: str, *, secret: bool) -> str | None:
    """Return what is shown in the place of a value; None where that is itself."""
    shown = _hidden(literal) if secret else _inside(literal)
    return shown if secret or shown != literal else None


def _hidden(literal: str) -> str:
    if literal in _PLAIN:
        return literal
    quote = literal[0] if literal[0] in "\"'" else ""
    return f"{quote}{MASK}{quote}" + "\n" * literal.count("\n")


def _inside(literal: str) -> str:
    """Return a value that no key calls secret, without the secrets that stand in it."""
    quote = re.match(r"\"\"\"|'''|[\"']|", literal)
    width = quote.end() if quote else 0
    if not width:
        return literal
    return literal[:width] + without_secrets(literal[width:-width]) + literal[-width:]


def _said(literal: str) -> str:
    """Return what a string says, whatever its spelling."""
    return plain(literal.strip("\"'"))


def _toml(text: str) -> Iterator[Span]:
    for table in tables(text, ()):
        yield from _pairs(text, tuple(table.pairs(text)), secret=any(map(is_secret, table.name)))


def _pairs(text: str, pairs: Sequence[Pair], *, secret: bool) -> Iterator[Span]:
    named = any(
        pair.name[-1].lower() in _NAME and announces(_said(text[pair.value.start : pair.value.end]))
        for pair in pairs
    )
    for pair in pairs:
        told = any(map(is_secret, pair.name)) or (named and pair.name[-1].lower() == _VALUE)
        yield from _values(text, pair.value, secret=secret or told)


def _values(text: str, node: Node, *, secret: bool) -> Iterator[Span]:
    """Yield what stands in a value of TOML; it is secret, or what secret names in it hold."""
    if node.pairs is not None:
        yield from _pairs(text, node.pairs, secret=secret)
    elif node.items is not None:
        before = ""
        for item in node.items:
            said = _said(text[item.start : item.end])
            yield from _values(text, item, secret=secret or announces(before) or is_login(before, said))
            before = said
    else:
        yield node.start, node.end, secret


@dataclass(slots=True)
class _Open:
    """A bracket that is open: what it has told so far of what stands in it."""

    is_object: bool
    secret: bool
    key: str = ""  # of the pair that is read; "" before it
    before: str = ""  # the last item of a list
    named: bool = False  # a name of a secret has stood here
    value: tuple[int, int] | None = None  # where the value of the name stands

    def is_secret(self, said: str = "") -> bool:
        if self.is_object:
            return self.secret or is_secret(self.key) or (self.named and self.key.lower() == _VALUE)
        return self.secret or announces(self.before) or is_login(self.before, said)


def _json(text: str) -> Iterator[Span]:
    """Yield the values of a JSON text, which need not be valid, and the keys in which a secret may stand."""
    above = [_Open(is_object=False, secret=False)]
    for match in _JSON.finditer(text):
        word, here = match[0], above[-1]
        if word in "{[":
            above.append(_Open(word == "{", here.is_secret()))
            here.before = ""
        elif word in "}]":
            del above[max(len(above) - 1, 1) :]
        elif word == ",":
            here.key = ""
        elif word != ":" and here.is_object and not here.key:
            here.key = _said(word) or " "
            if not here.key.isidentifier():
                yield *match.span(), False
        elif word != ":":
            said = _said(word)
            yield *match.span(), here.is_secret(said)
            here.before = said
            yield from _named(here, said, match.span())


def _named(here: _Open, said: str, span: tuple[int, int]) -> Iterator[Span]:
    """Yield the value of a name that was told only behind it."""
    key = here.key.lower()
    if key == _VALUE:
        here.value = span
    elif key in _NAME and announces(said):
        here.named = True
        if here.value:
            yield *here.value, True
