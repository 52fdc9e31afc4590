"""A text in YAML as data, as engines read it: the first document, by the rules of libyaml.

There is no parser of YAML in the image. What is refused here is what they refuse: tests ask a real one, and
a library with the same rules.
"""

import re
from base64 import b64decode
from typing import Any, Final

from installer.decide.yaml_words import (
    FOLDED,
    HEADER,
    NEXT_LINE,
    NULL,
    PLAIN,
    PLAIN_IN_FLOW,
    PLAIN_ON,
    QUOTED,
    Plain,
    lines,
    merged,
    put,
    tagged,
    unquoted,
)

_END: Final = "\0"  # which no text has
_BREAK: Final = re.compile(r"\r\n|[\r\x85\u2028\u2029]")
# U+FFFD stands for what is no UTF-8: one such byte, in a comment too, and engines read nothing of the text.
_REFUSED: Final = re.compile(r"[^\t\n -~\xa0-\ud7ff\ue000-\ufffc\U00010000-\U0010ffff]")
_DIRECTIVE: Final = re.compile(r"%(?:YAML[ \t]+1\.1|TAG[ \t]+[^ \t\n]+[ \t]+[^ \t\n]+)[ \t]*(?:#[^\n]*)?\n")
_MARK: Final = re.compile(r"(?:---|\.\.\.)(?=[ \t\n]|$)")
# Between two words: where a table or list may begin a tab may not stand.
_GAP: Final = re.compile(r"(?:[ \n]|#[^\n]*)*")
_GAP_BEHIND: Final = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n(?:[ \n]|#[^\n]*)*)?")
_GAP_IN_FLOW: Final = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_PROPERTY: Final = re.compile(r"&([\w-]+)|!(<[^> \t\n]*>|[^ \t\n,\[\]{}]*)")
_ALIAS: Final = re.compile(r"\*([\w-]+)")
_COLON: Final = re.compile(r"[ \t]*:(?=[ \t\n]|$)")
# Lines that begin with a blank stay lines.
_FOLDED_LINE: Final = re.compile(r"^([^ \t\n].*)\n(\n*)(?=[^ \t\n])", re.MULTILINE)


def read_yaml(text: str) -> Any:
    """Return tables, lists, texts and None; a word without quotes is ``Plain``.

    Raises:
        ValueError: no engine reads it.
        RecursionError: it is nested too deeply.
    """
    text = _BREAK.sub("\n", text.removeprefix("\ufeff"))
    if _REFUSED.search(text):
        raise ValueError("a character that no text has")
    return _Reader(text).document()


class _Reader:
    """One text, and how far it was read."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._anchors: dict[str, Any] = {}

    def document(self) -> Any:
        self._pass(_GAP)
        directed = False
        while found := _DIRECTIVE.match(self._text, self._at):
            directed, self._at = True, found.end()
            self._pass(_GAP)
        marked = self._text.startswith("---", self._at) and self._ended
        if marked:
            self._at += 3
        elif directed:
            raise self._wrong("no document behind a directive")
        return self._node(-1, fresh=not marked)

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1] or _END

    @property
    def _column(self) -> int:
        return self._at - self._text.rfind("\n", 0, self._at) - 1

    @property
    def _ended(self) -> bool:
        """Whether the document is over here."""
        return self._next == _END or (not self._column and _MARK.match(self._text, self._at) is not None)

    def _wrong(self, why: str) -> ValueError:
        return ValueError(f"{why} at {self._text[self._at : self._at + 20]!r}")

    def _pass(self, gap: "re.Pattern[str]") -> bool:
        """Pass what is no word; tell whether a line has ended there."""
        found = gap.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found is not None and "\n" in found[0]

    def _is(self, mark: str) -> bool:
        """Tell whether a mark stands here that counts only with a blank behind it."""
        return self._next == mark and self._text[self._at + 1 : self._at + 2] in " \t\n"

    def _absent(self, indent: int, *, listed: bool) -> bool:
        """Tell whether nothing deeper than a column stands here; a list may be as deep, where ``listed``."""
        return self._ended or self._column < indent + 1 - (listed and self._is("-"))

    def _node(self, indent: int, *, fresh: bool, listed: bool = False) -> Any:
        """Return what stands deeper than a column; a table or list begins here where it is ``fresh``."""
        fresh = self._pass(_GAP if fresh else _GAP_BEHIND) or fresh
        begun = self._at
        properties, above = dict[str, str](), False
        while not self._absent(indent, listed=listed) and self._next in "&!":
            properties |= self._property()
            above = self._pass(_GAP_BEHIND)
            if above:
                fresh, begun = True, self._at
        if self._absent(indent, listed=listed):
            return self._kept(Plain(), properties)
        if fresh and begun == self._at and self._next in "-?" and self._is(self._next):
            take = self._list if self._next == "-" else self._table
            return self._kept(take(self._column), properties)
        if self._next in "|>":
            return self._kept(self._block_text(indent), properties)
        column = begun - self._text.rfind("\n", 0, begun) - 1
        plain = self._next not in "*[{\"'"
        value = self._word(PLAIN)
        if _COLON.match(self._text, self._at) and "\n" not in self._text[begun : self._at]:
            if not fresh:
                raise self._wrong("a table where none may begin")
            if above:  # what stands on a line of its own is said of the table
                return self._kept(self._table(column, value), properties)
            return self._table(column, self._kept(value, properties))
        return self._kept(self._longer(value, indent) if plain else value, properties)

    def _property(self) -> dict[str, str]:
        found = _PROPERTY.match(self._text, self._at)
        if found is None:
            raise self._wrong("no name")
        self._at = found.end()
        return {"anchor": found[1]} if found[1] else {"tag": found[2]}

    def _kept(self, value: Any, properties: dict[str, str]) -> Any:
        """Return a value with its tag heeded, known by its anchor."""
        tag = properties.get("tag")
        if isinstance(value, Plain) and tag is None:
            value = None if value in NULL else value
        elif isinstance(value, str) and tag in {"!binary", "<tag:yaml.org,2002:binary>"}:
            value = b64decode(value).decode()
        elif isinstance(value, str) and not (isinstance(value, Plain) and tag is None):
            value = tagged(value, tag)
        if anchor := properties.get("anchor"):
            self._anchors[anchor] = value
        return value

    def _word(self, plain: "re.Pattern[str]") -> Any:
        """Return what an alias, a quoted or plain word on one line, or brackets come to."""
        if self._next in "[{":
            return self._brackets()
        found = _ALIAS.match(self._text, self._at)
        if found is not None:
            if found[1] not in self._anchors:
                raise self._wrong("an alias of nothing")
            self._at = found.end()
            return self._anchors[found[1]]
        if found := QUOTED.match(self._text, self._at):
            self._at = found.end()
            return unquoted(found)
        if found := plain.match(self._text, self._at):
            self._at = found.end()
            return Plain(FOLDED.sub(lines, found[0]))
        raise self._wrong("no value")

    def _longer(self, value: str, indent: int) -> Plain:
        """Return a plain word with the lines on which it goes on."""
        while (line := NEXT_LINE.match(self._text, self._at)) and len(line[1]) > indent:
            before, self._at = self._at, line.end()
            found = None if self._ended else PLAIN_ON.match(self._text, self._at)
            if found is None:
                self._at = before
                break
            value, self._at = value + lines(line) + found[0].strip(" \t"), found.end()
        return Plain(value)

    def _list(self, column: int) -> list[Any]:
        found = list[Any]()
        while not self._ended and self._column == column and self._is("-"):
            self._at += 1
            found.append(self._node(column, fresh=True))
            self._to_next(column)
        return found

    def _table(self, column: int, *keys: Any) -> dict[str, Any]:
        """Return a table whose keys stand in a column; the first one has been read where it is given."""
        found = dict[str, Any]()
        while keys or (not self._ended and self._column == column):
            asked = not keys and self._is("?")
            key = keys[0] if keys else self._key(column)
            keys = ()
            colon = _COLON.match(self._text, self._at)
            if colon is None and not asked:
                raise self._wrong("a key without a colon")
            self._at = colon.end() if colon else self._at
            value = self._node(column, fresh=asked, listed=True) if colon else None
            put(found, key, value)
            self._to_next(column)
        return merged(found)

    def _key(self, column: int) -> Any:
        if self._is("?"):
            self._at += 1
            key = self._node(column, fresh=True, listed=True)
            self._to_next(column)
            return key
        begun, properties = self._at, dict[str, str]()
        while self._next in "&!":
            properties |= self._property()
            self._pass(_GAP_BEHIND)
        key = self._kept(self._word(PLAIN), properties)
        if "\n" in self._text[begun : self._at]:
            raise self._wrong("a key of several lines")
        return key

    def _to_next(self, column: int) -> None:
        """Go where the next word stands, which is no deeper than what is being read."""
        self._pass(_GAP_BEHIND)
        before = self._text[self._text.rfind("\n", 0, self._at) + 1 : self._at]
        if not self._ended and (before.strip(" ") or self._column > column):
            raise self._wrong("what belongs to nothing")

    def _block_text(self, indent: int) -> str:
        header = HEADER.match(self._text, self._at)
        if header is None:
            raise self._wrong("no text in lines")
        self._at = header.end()
        depth = max(indent, 0) + int(header[2] or header[5]) if header[2] or header[5] else 0
        lines = list[str]()
        while self._next != _END:
            end = self._text.find("\n", self._at)
            line = self._text[self._at : end if end >= 0 else None]
            blanks = len(line) - len(line.lstrip(" "))
            if not depth and blanks < len(line):
                depth = max(indent + 1, 1, blanks)
            if blanks < len(line) and blanks < depth:
                break
            lines.append(line[depth:] if depth else "")
            self._at += len(line) + (end >= 0)
        ended = self._text[self._at - 1 : self._at] == "\n"
        self._at -= ended  # for whoever comes next to see that a line has ended
        text = "\n".join(lines).rstrip("\n")
        if header[1] == ">":
            text = _FOLDED_LINE.sub(lambda found: found[1] + (found[2] or " "), text)
        kept = ended and text and (header[3] or header[4]) != "-"
        return f"{text}\n" if kept else text

    def _brackets(self) -> Any:
        """Return the list or table in brackets."""
        closing = {"[": "]", "{": "}"}[self._next]
        self._at += 1
        items, table = list[Any](), dict[str, Any]()
        while self._pass(_GAP_IN_FLOW) or self._next != closing:
            if self._next == closing:
                break
            if self._next == ",":
                raise self._wrong("nothing ahead of a comma")
            key, value, pair = self._entry()
            if closing == "}":
                put(table, key, value)
            else:
                items.append({str(key): value} if pair else key)
            self._pass(_GAP_IN_FLOW)
            if self._next != ",":
                if self._next != closing:
                    raise self._wrong("brackets that do not end")
                break
            self._at += 1
        self._at += 1
        return items if closing == "]" else merged(table)

    def _entry(self) -> tuple[Any, Any, bool]:
        """Return a key, or an item of a list, and the value behind it; and whether there is one."""
        if asked := self._is("?"):
            self._at += 1
        key = self._in_brackets()
        self._pass(_GAP_IN_FLOW)
        if self._next != ":":
            return key, None, asked
        self._at += 1
        return key, self._in_brackets(), True

    def _in_brackets(self) -> Any:
        properties = dict[str, str]()
        self._pass(_GAP_IN_FLOW)
        while self._next in "&!":
            properties |= self._property()
            self._pass(_GAP_IN_FLOW)
        absent = self._next in ",]}:"
        return self._kept(Plain() if absent else self._word(PLAIN_IN_FLOW), properties)
