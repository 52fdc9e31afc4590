"""Where a path or a word of a text leads: into the toolkit, by links or by a script there, or not."""

import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Final

from installer.host.files import Host, text
from installer.model.files import Kind
from installer.model.paths import Layout

SCRIPT_BYTES: Final = 64 << 10
COMMENT: Final = re.compile(r"(?m)^\s*#.*$")


def leads_to(host: Host, path: PurePosixPath, layout: Layout) -> PurePosixPath | None:
    """Return the file of ours that a path leads to by links, or that a script there names; None for another.

    Raises:
        InstallerError: another user than root may have placed a link on the way.
    """
    home, real = host.resolve(layout.home), host.resolve(path)
    small = host.kind(real) is Kind.FILE and host.size(real) <= SCRIPT_BYTES
    script = text(host, real) if small else ""
    named = find_paths(script, list_places(host, layout)) if script.startswith("#!") else []
    leads = (real, *map(host.resolve, named))
    return next((file for file in leads if file.is_relative_to(home)), None)


def list_places(host: Host, layout: Layout) -> tuple[str, ...]:
    """Return the directories of the toolkit, also as they are where the install-dir is a link."""
    both = dict.fromkeys((layout, Layout(host.resolve(layout.install_dir))))
    return tuple(str(place) for each in both for place in (each.toolkit, each.home))


def find_paths(text: str, places: Collection[str]) -> list[PurePosixPath]:
    """Return the words of a text, YAML, JSON or a script, that are a path below one of these places."""
    text = text.replace("\\/", "/")
    if not any(place in text for place in places):
        return []
    ours = "|".join(map(re.escape, places))  # which may hold what ends a word
    words = rf"""(?<![^\s"'=:,;\[({{<|>])(?:{ours})[^\s\0"',:;\[\](){{}}<|>]*"""
    return [*map(PurePosixPath, re.findall(words, COMMENT.sub("", text)))]
