"""Add an element to an array's literal, in the array's own style, or take one out of it."""

import re
from typing import Final

from installer.decide.edits.toml_scan import array_at, comma_after

_BLANK: Final = " \t"
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")


def with_element(array: str, element: str) -> str:
    """Return the literal ``array`` with ``element`` at its end."""
    items = array_at(array, 0).items or ()
    if not items:
        head, newline, tail = array[:-1].rpartition("\n")
        if not newline:
            return f"[{element}{array[1:]}"
        eol = "\r\n" if head.endswith("\r") else "\n"
        head = head.removesuffix("\r")
        return f"{head}{eol}{tail}  {element},{eol}{tail}]"
    last = items[-1]
    newline, indent = _line_start(array, items[-2].end if len(items) > 1 else 1, last.start)
    comma = comma_after(array, last.end)
    added = f"{newline}{indent}{element}" if newline else f" {element}"
    if comma is None:
        at = _content_end(array, last.end) if newline else last.end
        return f"{array[: last.end]},{array[last.end : at]}{added}{array[at:]}"
    at = _content_end(array, comma + 1) if newline else comma + 1
    return f"{array[:at]}{added},{array[at:]}"


def without_element(array: str, index: int) -> str:
    """Return the literal ``array`` without its element ``index``, its comma and its line."""
    items = array_at(array, 0).items or ()
    start, end = items[index].start, items[index].end
    comma = comma_after(array, end)
    if comma is not None:
        array = array[:end] + array[end:comma].strip(_BLANK) + array[comma + 1 :]
    elif index:
        comma = comma_after(array, items[index - 1].end)
        if comma is not None:
            array = array[:comma] + array[comma + 1 :]
            start, end = start - 1, end - 1
    head, tail = array[:start].rstrip(_BLANK), array[end:].lstrip(_BLANK)
    if head.endswith("\n") and tail.startswith(("\n", "\r\n")):
        return head.removesuffix("\n").removesuffix("\r") + tail
    if comma is not None and index == len(items) - 1:
        return head + array[end:]
    return array[:start] + tail


def _line_start(array: str, after: int, start: int) -> tuple[str, str]:
    """Return the line end and the indentation before ``start``, empty if it shares a line."""
    head, newline, indent = array[after:start].rpartition("\n")
    if not newline:
        return "", ""
    return ("\r\n" if head.endswith("\r") else "\n"), re.sub(r"[^ \t].*", "", indent)


def _content_end(array: str, pos: int) -> int:
    """Return where the line of ``pos`` ends, or ``pos`` if more than a comment follows on it."""
    match = _REST_OF_LINE.match(array, pos)
    return match.end() if match else pos
