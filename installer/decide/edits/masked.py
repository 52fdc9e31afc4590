"""A config as it may be shown: values under names of secrets and passwords in addresses are masked.

The lines stay what they are, one for one, so that a diff of the texts can be shown in masked lines.
"""

import itertools
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from installer.decide.edits.model import Syntax
from installer.decide.edits.toml_scan import Node, tables
from installer.decide.edits.tree import TextError

MASK: Final = "***"
_SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|credential|authoriz|cookie|bearer|signature|^sig$"
    r"|^auths?$|registryauth|(api|access|private|signing|encryption|account)key|^key$|keydata|keypem"
)
# Where a secret is, what asks for it, or that it comes by another way.
_HARMLESS: Final = re.compile(r"(file|path|dir|plugins?|endpoint|stdin)$")
_ADDRESS: Final = re.compile(r"(://)[^\s\"'<>]*@")
_BARE_ADDRESS: Final = re.compile(r"(proxy[^\n]*?[\"'=\s])[^\s\"'/@]+:[^\s\"'/@]+@", re.IGNORECASE)
_COMMENT: Final = re.compile(r"#.*")
_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\s"{}\[\],:]++|[{}\[\],:]')
_PLAIN: Final = frozenset({"true", "false", "null"})
PLAIN_LENGTH: Final = 6  # one more than they have: it is the end of the line
# In a string or a comment: NAME=value, NAME: value and "NAME": "value", and --NAME value.
_NAMED: Final = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]+)(?:\\?[\"'])?[ \t]*[=:][ \t]*(?:\\?[\"'])?(?=[^\s\"'])"
)
_FLAG: Final = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][\w-]*)[ \t]+(?=\S)")
_SCHEME: Final = re.compile(r"\b(?i:bearer|basic|negotiate)[ \t]+(?=[\w+/=.~-]*[A-Z\d=])")
_PEM: Final = re.compile(r"(-----BEGIN [^-\n]*-----)(.*?)(-----END|\Z)", re.DOTALL)
_WHOLE_PEM: Final = re.compile(r"(-----BEGIN [^-\n]*-----)(.*?)(-----END)", re.DOTALL)
_JWT: Final = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*")

Span = tuple[int, int, bool]  # of a value, and whether all of it is secret


def masked(text: str, syntax: Syntax) -> str:
    """Return ``text`` without its secrets, in as many lines.

    One that is not understood is shown without any value.
    """
    try:
        found: dict[tuple[int, int], bool] = {}
        for start, end, secret in _json(text) if syntax is Syntax.JSON else _toml(text):
            # An inline table is seen as a value and as a table.
            found[start, end] = secret or found.get((start, end), False)
    except (TextError, RecursionError):
        return re.sub(r"[^\n]+", MASK, text)
    out, done = [], 0
    for (start, end), secret in sorted(found.items()):
        literal = text[start:end]
        out += [text[done:start], _hidden(literal) if secret else _inside(literal)]
        done = end
    shown = "".join((*out, text[done:]))
    if syntax is Syntax.TOML:
        shown = _COMMENT.sub(lambda comment: _named_values(comment[0]), shown)
    shown = _JWT.sub(MASK, _WHOLE_PEM.sub(_pem, shown))
    return _BARE_ADDRESS.sub(rf"\1{MASK}@", _ADDRESS.sub(rf"\1{MASK}@", shown))


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Tell whether a key of this name holds what nobody should read over a shoulder."""
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    return _SECRET.search(word) is not None and _HARMLESS.search(word) is None


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
    said = _PEM.sub(_pem, literal[width:-width])
    return literal[:width] + "\n".join(map(_named_values, said.split("\n"))) + literal[-width:]


def _pem(match: re.Match[str]) -> str:
    return match[1] + re.sub(r"[^\n]+", MASK, match[2]) + match[3]


def _named_values(line: str) -> str:
    """Return a line of a string or a comment without what follows a secret's name: all to its end."""
    ends = [match.end() for match in _SCHEME.finditer(line)][:1]
    for pattern in (_NAMED, _FLAG):
        found = (match.end() for match in pattern.finditer(line) if is_secret(match["name"]))
        ends += [end for end in itertools.islice(found, 1) if line[end : end + PLAIN_LENGTH] not in _PLAIN]
    return line[: min(ends)] + MASK if ends else line


def _is_flag(literal: str) -> bool:
    """Tell whether an item of a list says that the next one is a secret."""
    word = literal.strip("\"'")
    return word.startswith("-") and is_secret(word)


def _toml(text: str) -> Iterator[Span]:
    for table in tables(text, ()):
        above = any(map(is_secret, table.name))
        for pair in table.pairs(text):
            yield from _values(text, pair.value, secret=above or any(map(is_secret, pair.name)))


def _values(text: str, node: Node, *, secret: bool) -> Iterator[Span]:
    """Yield what stands in a value of TOML; it is secret, or what secret names in it hold."""
    if node.pairs is not None:
        for pair in node.pairs:
            yield from _values(text, pair.value, secret=secret or any(map(is_secret, pair.name)))
    elif node.items is not None:
        follows = False
        for item in node.items:
            yield from _values(text, item, secret=secret or follows)
            follows = _is_flag(text[item.start : item.end])
    else:
        yield node.start, node.end, secret


def _json(text: str) -> Iterator[Span]:
    """Yield the values of a JSON text."""
    above: list[tuple[bool, bool]] = []  # of each bracket that is open: is it an object's, is it secret
    secret = name_follows = flagged = False
    for match in _JSON.finditer(text):
        word = match[0]
        if word in "{[":
            above.append((word == "{", secret or flagged))
            name_follows, flagged = word == "{", False
            secret = above[-1][1]
        elif word in "}]":
            del above[-1:]
            flagged = False
        elif word == ",":
            name_follows, inherited = above[-1] if above else (False, False)
            secret = inherited
        elif word != ":" and name_follows:
            secret = any(inherited for _, inherited in above[-1:]) or is_secret(word)
            name_follows = False
        elif word != ":":
            yield *match.span(), secret or flagged
            flagged = any(not in_object for in_object, _ in above[-1:]) and _is_flag(word)
