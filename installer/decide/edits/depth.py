"""Keys of TOML that are too deep to be given to ``tomllib``."""

import re
from typing import Final

# A key of so many parts; tomllib keeps every beginning of a key, which takes the square of it.
_DEEP: Final = re.compile(
    r"(?<![A-Za-z0-9_-])"
    r"""(?:(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.){0,256}+"|'[^'\n]{0,256}+')[ \t]*+\.[ \t]*+){32}"""
)


def is_deep(text: str) -> bool:
    """Return whether a key of ``text``, which need not be TOML, has more parts than anybody writes."""
    return _DEEP.search(text) is not None
