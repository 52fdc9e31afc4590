"""Golden texts: what a person has read once, and `make golden` rewrites."""

import json
import os
from pathlib import Path
from typing import Final

REWRITE: Final = "GOLDEN" in os.environ


def golden(path: Path, text: str) -> str:
    """Return the golden text at ``path``, which is ``text`` from now on where that is asked for."""
    if REWRITE:
        path.write_text(text)
    return path.read_text()


def golden_line(path: Path, name: str, line: str) -> str:
    """Return the golden line of that name in a file of many, which is ``line`` from now on where asked for."""
    lines: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    if REWRITE and lines.get(name) != line:
        lines[name] = line
        path.write_text(json.dumps(dict(sorted(lines.items())), indent=1, ensure_ascii=False) + "\n")
    return lines[name]
