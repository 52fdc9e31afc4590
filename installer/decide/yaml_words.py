"""Words of a text in YAML, plain, in quotes and in lines of their own, and the tables that they get into."""

import re
from typing import Any, Final

QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\']|\'\')*)\'', re.DOTALL)
_FIRST: Final = r"(?:[^ \t\n\-?:,\[\]{}#&*!|>'\"%@`]|[-?:](?=[^ \t\n]))"
PLAIN: Final = re.compile(rf"{_FIRST}(?:[ \t]*(?:[^ \t\n:#]|:(?=[^ \t\n])|(?<=[^ \t\n])#))*")
PLAIN_ON: Final = re.compile(r"(?:[ \t]*(?:[^ \t\n:#]|:(?=[^ \t\n])|(?<=[^ \t\n])#))+")
PLAIN_IN_FLOW: Final = re.compile(
    r"(?:[^ \t\n\-?:,\[\]{}#&*!|>'\"%@`]|-(?=[^ \t\n,\[\]{}]))"
    r"(?:[ \t\n]*(?:[^ \t\n:#,?\[\]{}]|:(?=[^ \t\n])|(?<=[^ \t\n])#))*"
)
NEXT_LINE: Final = re.compile(r"[ \t]*\n(?:[ \t]*\n)*( *)(?=[^ \t\n#])")
HEADER: Final = re.compile(r"([|>])(?:([1-9])?([+-]?)|([+-])([1-9]))(?:[ \t]+#[^\n]*|[ \t]*)(?:\n|$)")
FOLDED: Final = re.compile(r"[ \t]*\n[ \t\n]*")
_ESCAPE: Final = re.compile(r"\\(\n[ \t]*|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|.)", re.DOTALL)
_ESCAPED: Final = dict(
    zip("0abt\tnvfe \"\\'N_LP", "\0\a\b\t\t\n\v\f\x1b \"\\'\x85\xa0\u2028\u2029", strict=True)
)
_SURROGATES: Final = range(0xD800, 0xE000)
_PAST_UNICODE: Final = 0x110000
NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
FLAGS: Final = frozenset(
    form
    for word in ("y", "yes", "on", "true", "n", "no", "off", "false")
    for form in (word, word.upper(), word.capitalize())
)
# As Go takes them of YAML: `017` is of base 8, and 08, which is none, a fraction of no digits.
_INTEGER: Final = re.compile(r"([-+]?)(0[xX][\da-fA-F]+|0[bB][01]+|0[oO][0-7]+|0[0-7]*|[1-9]\d*)", re.ASCII)
_FRACTION: Final = re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?", re.ASCII)
_FIRST_OF_NUMBERS: Final = frozenset("+-.0123456789")
_UNSIGNED: Final = 32  # bits


class Plain(str):
    """A word without quotes: it may stand for a number."""

    __slots__ = ()


def tagged(word: str, tag: str | None) -> str:
    """Return a word as its tag has it: also in quotes it may be a number, or yes or no.

    Raises:
        ValueError: engines refuse it with this tag.
    """
    match tag and tag.removeprefix("<tag:yaml.org,2002:").strip("!>"):
        case "int" if _INTEGER.fullmatch(word.replace("_", "")):
            return Plain(word)
        case "bool" if word in FLAGS:
            return Plain(word)
        case "float":
            return Plain(word)
        case "int" | "bool":
            raise ValueError(f"{word!r} as a number, or as yes or no")
        case _:
            return str(word)


def integer(word: str, bits: int) -> int:
    """Return the integer that a plain word stands for, signed where it may have more than 32 bits.

    Raises:
        ValueError: engines take it for none, or it is too large for them.
    """
    plain = word.replace("_", "")
    if word[:1] not in _FIRST_OF_NUMBERS:
        raise ValueError("no number")
    signed = bits > _UNSIGNED
    if found := _INTEGER.fullmatch(plain):
        octal = found[2].isdigit() and found[2].startswith("0")
        number = int(found[1] + found[2], 8 if octal else 0)
    elif _FRACTION.fullmatch(plain) and (value := float(plain)).is_integer():
        number = int(value)
        # Engines pass its shortest text on, which may be too large by its last zeros, or "-0".
        if abs(value) >= 2 ** (bits - signed) or (not signed and not number and plain[0] == "-"):
            raise ValueError("too large, or less than nothing")
    else:
        raise ValueError("no integer")
    lowest = -(2 ** (bits - 1)) if signed else 0
    if not lowest <= number < 2 ** (bits - signed):
        raise ValueError("too large, or less than nothing")
    return number


def lines(found: "re.Match[str]") -> str:
    """Return what the end of a line, and the empty ones behind it, stand for between words."""
    return "\n" * (found[0].count("\n") - 1) or " "


def unquoted(found: "re.Match[str]") -> str:
    """Return what is meant by a word in quotes.

    Raises:
        ValueError: engines refuse what is escaped in it.
    """
    if found[1] is None:
        return FOLDED.sub(lines, found[2]).replace("''", "'")
    parts = re.split(r"(\\(?:\n|.))", found[1], flags=re.DOTALL)
    folded = "".join(part if at % 2 else FOLDED.sub(lines, part) for at, part in enumerate(parts))
    return _ESCAPE.sub(_unescaped, folded)


def _unescaped(found: "re.Match[str]") -> str:
    word = found[1]
    if word[0] == "\n":
        return ""
    if len(word) > 1:
        number = int(word[1:], 16)
        if number in _SURROGATES or number >= _PAST_UNICODE:
            raise ValueError(f"{found[0]!r} in quotes")
        return chr(number)
    if word not in _ESCAPED:
        raise ValueError(f"{found[0]!r} in quotes")
    return _ESCAPED[word]


def put(table: dict[str, Any], key: Any, value: Any) -> None:
    """Put a value into a table.

    Raises:
        ValueError: engines take no such key, or have it already.
    """
    if not isinstance(key, str) or key in table:
        raise ValueError(f"{key!r} as a key")
    table[key] = value


def merged(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with what is to be merged into it.

    Raises:
        ValueError: that is no table.
    """
    if not any(key == "<<" and isinstance(key, Plain) for key in table):
        return table
    sources = table.pop("<<")
    listed = sources if isinstance(sources, list) else [sources]
    if not all(isinstance(source, dict) for source in listed):
        raise ValueError("no table to be merged")
    for source in listed:
        table = source | table
    return table
