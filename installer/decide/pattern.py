"""``re.compile`` at the first use: a start uses few of our patterns, and each costs as much as a module."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as pattern
else:

    def pattern(pattern: Any, flags: int = 0) -> "_Pattern":
        """Return what has the methods of a compiled pattern."""
        return _Pattern(pattern, flags)


__all__ = ["pattern"]


class _Pattern:
    """A pattern that is compiled once something is asked of it."""

    def __init__(self, pattern: Any, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        import re

        compiled = re.compile(self.pattern, self._flags)
        for each in ("match", "fullmatch", "search", "sub", "finditer", "findall", "split"):
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)
