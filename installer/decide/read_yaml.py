"""A text in YAML as data, as engines read it: its first document, within bounds of size, depth, aliases."""

import re
from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

from installer.decide.errors import InstallerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from yaml.events import Event, ScalarEvent

# The specification of a node with 128 devices has 130,000 characters and 7 levels.
SIZE: Final = 4 << 20  # characters, and those of all words with what each alias stands for
DEPTH: Final = 32
VALUES: Final = 1 << 18  # with what each alias stands for
# PyYAML takes these, and engines refuse them.
_DIRECTIVE: Final = re.compile(r"(?:[ \t]*(?:#.*)?\n|%.*\n)*%(?!YAML[ \t]|TAG[ \t])")
_ESCAPED_SLASH: Final = re.compile(r"(?<!\\)(?:\\\\)*\\/")
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
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


def read_yaml(text: str) -> Any:
    """Return tables, lists, texts and None; a word without quotes is ``Plain``.

    Raises:
        ValueError: no engine reads it.
        InstallerError: it is out of bounds.
    """
    import yaml  # most nodes have no such file

    if len(text) > SIZE:
        raise _too_much(f"it has more than {SIZE >> 20} MiB")
    text = text.removeprefix("\ufeff")
    # U+FFFD stands for what is no UTF-8: with one such byte, in a comment too, engines read nothing of it.
    if "\ufffd" in text or _DIRECTIVE.match(text):
        raise ValueError("no text that engines read")
    try:
        return _Document(text, yaml.parse(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))).read()
    except yaml.YAMLError as error:
        raise ValueError("no YAML") from error


def _too_much(reason: str) -> InstallerError:
    remedy = "remove it, or ask for a smaller one from whoever made it"
    return InstallerError(f"read a CDI specification ({reason})", remedy=remedy, code="cdi-failed")


class _Document:
    """The first document, made of the events of a parser."""

    def __init__(self, text: str, events: "Iterator[Event]") -> None:
        self._text, self._events = text, events
        self._anchors: dict[str, tuple[Any, int, int]] = {}

    def read(self) -> Any:
        from yaml.events import DocumentStartEvent, StreamEndEvent

        for event in self._events:
            if isinstance(event, StreamEndEvent):
                return None
            if isinstance(event, DocumentStartEvent):
                if event.version not in {None, (1, 1)}:
                    raise ValueError("another version of YAML")
                value = self._node(next(self._events), 0)[0]
                next(self._events)  # what stands behind it on its line is refused here
                return value
        return None

    def _node(self, event: "Event", depth: int) -> tuple[Any, int, int]:
        """Return a value, and how many values and characters it is with what all aliases in it stand for."""
        from yaml.events import AliasEvent, NodeEvent, ScalarEvent, SequenceStartEvent

        anchor = event.anchor if isinstance(event, NodeEvent) else None
        if isinstance(event, AliasEvent):
            if anchor not in self._anchors:
                raise ValueError("an alias of nothing")
            return self._anchors[anchor]
        if depth == DEPTH:
            raise _too_much(f"it has more than {DEPTH} levels")
        self._anchors.pop(anchor or "", None)  # no value holds itself
        if isinstance(event, ScalarEvent):
            begin, end = event.start_mark, event.end_mark
            if (
                event.style == '"'
                and begin
                and end
                and _ESCAPED_SLASH.search(self._text, begin.index, end.index)
            ):
                raise ValueError("a slash that is escaped")
            found = _word(event), 1, len(event.value)
        else:
            items, count, size = self._items(depth + 1)
            found = (items if isinstance(event, SequenceStartEvent) else _table(items)), count, size
        if anchor:
            self._anchors[anchor] = found
        return found

    def _items(self, depth: int) -> tuple[list[Any], int, int]:
        from yaml.events import CollectionEndEvent

        items, count, size = [], 1, 0
        for event in self._events:
            if isinstance(event, CollectionEndEvent):
                break
            item, more, longer = self._node(event, depth)
            items.append(item)
            count, size = count + more, size + longer
            if count > VALUES or size > SIZE:
                most = f"{VALUES} values" if count > VALUES else f"{SIZE >> 20} MiB"
                raise _too_much(f"with what its aliases stand for it has more than {most}")
        return items, count, size


def _table(items: list[Any]) -> dict[str, Any]:
    """Return the table of keys and values in turn, with what is to be merged into it."""
    table = dict[str, Any]()
    merges = False
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str) or key in table:
            raise ValueError("a key that is no text, or that is there already")
        merges = merges or (key == "<<" and isinstance(key, Plain))
        table[key] = value
    if merges:
        sources = table.pop("<<")
        sources = sources if isinstance(sources, list) else [sources]
        if not all(isinstance(source, dict) for source in sources):
            raise ValueError("no table to be merged")
        for key, value in (pair for source in sources for pair in source.items()):
            table.setdefault(key, value)
    return table


def _word(event: "ScalarEvent") -> Any:
    """Return a word as its tag has it: also in quotes it may be a number, or yes or no."""
    word = event.value
    word.encode()  # half a character is refused
    if event.tag is None:
        return word if event.style else None if word in _NULL else Plain(word)
    match event.tag.removeprefix("tag:yaml.org,2002:"):
        case "binary":
            return b64decode(word).decode()
        case "int" if not _INTEGER.fullmatch(word.replace("_", "")):
            raise ValueError("a word as a number")
        case "bool" if word not in FLAGS:
            raise ValueError("a word as yes or no")
        case "int" | "bool" | "float":
            return Plain(word)
        case _:
            return word


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
