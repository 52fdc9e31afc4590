"""Golden texts: what a person has read once, and `make golden` rewrites."""

import os
from pathlib import Path
from typing import Final

REWRITE: Final = "GOLDEN" in os.environ


def golden(path: Path, text: str) -> str:
    """Return the golden text at ``path``, which is ``text`` from now on where that is asked for."""
    if REWRITE:
        path.write_text(text)
    return path.read_text()
