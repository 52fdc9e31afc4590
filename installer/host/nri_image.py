"""``toolkit-installer nri`` becomes the plugin: the same process, in a bare interpreter, with its lock."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from installer.host import nri_start


def become_plugin(words: Sequence[str]) -> None:
    """Become the plugin that ``nri_plugin.main`` makes of ``words``; return only where that cannot be."""
    command = [sys.executable, "-I", "-S", str(Path(nri_start.__file__).resolve()), *words]
    with suppress(OSError):
        os.execv(sys.executable, command)  # noqa: S606 - no shell is meant to be there
