"""What there is to know about a syntax to edit text in it."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from installer.config_text.model import Key, Value
from installer.config_text.tree import Branch


class Grammar(Struct, frozen=True):
    """One syntax: how its text is read, and how one key of it is changed.

    ``container`` is what it calls a table; ``start`` the text to begin with where
    there is none, if it needs one. With ``vanishing`` a table may be gone with
    its last key. Each function but ``load``, ``value`` and ``literal`` takes text
    and a key and returns what ``find`` finds or the changed text: ``close`` takes
    an empty container away, ``unopened`` tells whether a table that is there only
    through its sub-tables gets a header for its first own key.
    """

    title: str
    container: str
    start: str
    vanishing: bool
    load: Callable[[str], Branch]
    value: Callable[[str], Any]
    literal: Callable[[Value], str]
    find: Callable[[str, Key], str | None]
    replace: Callable[[str, Key, str], str]
    insert: Callable[[str, Key, str], str]
    remove: Callable[[str, Key], str]
    close: Callable[[str, Key], str]
    unopened: Callable[[str, Key], bool]
