"""Paths that lead to the toolkit: by links, by a script, or named in a text."""

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Final

from installer.errors import InstallerError
from installer.host.files import Host, text
from installer.model.files import VERSIONS, Kind, Layout

SCRIPT_BYTES: Final = 64 << 10  # of a script that may start our program
MOST_LINKS: Final = 40  # as the kernel follows in one path
COMMENT: Final = re.compile(r"(?m)^[^\S\n]*+#.*$")


def leads_to(host: Host, path: PurePosixPath, layout: Layout) -> PurePosixPath | None:
    """Find the file of the toolkit behind a path: by links, or by a script; None for another file."""
    home = host.resolve(layout.home)
    file = host.resolve(path)
    script = ""
    if host.kind(file) is Kind.FILE and host.size(file) <= SCRIPT_BYTES:
        script = text(host, file)
    named: list[PurePosixPath] = []
    if script.startswith("#!"):
        named = find_paths(script, list_places(host, layout))

    files = (file, *map(host.resolve, named))
    return next((each for each in files if each.is_relative_to(home)), None)


def find_below_toolkit(layout: Layout, path: PurePosixPath) -> PurePosixPath | None:
    """Return a path below the toolkit's directory or below a version; None for another path."""
    # Below the versions the name of the version is skipped.
    skipped_parts = {layout.versions: 1, layout.toolkit: 0}
    for above, skipped in skipped_parts.items():
        if path.is_relative_to(above):
            below = path.parts[len(above.parts) + skipped :]
            return PurePosixPath(*below) if below else None
    return None


def comes_back(host: Host, layout: Layout, program: PurePosixPath) -> bool:
    """Tell whether an undo restores a file: the replaced directory has one at the same path.

    An owner's link in the place of the toolkit's directory is kept as a link, perhaps a relative one.
    """
    below = find_below_toolkit(layout, program)
    if below is None:
        return False
    target = host.link_target(layout.replaced)
    if target is not None and target.startswith(VERSIONS):  # of ours, left by an interrupted exchange
        return False
    former = layout.replaced if target is None else layout.install_dir / target
    with suppress(InstallerError):
        if host.kind(former / below) is Kind.FILE:
            return True
        link = host.link_target(former / below)
        if link is None:
            return False
        # The replaced directory lies deeper now than where its relative links lead from.
        path = PurePosixPath(normpath(layout.toolkit / below.parent / link))
        beside = find_below_toolkit(layout, path)
        return host.kind(path if beside is None else former / beside) is Kind.FILE
    return False


def leads_by_version(host: Host, layout: Layout, path: PurePosixPath) -> bool:
    """Tell whether a path leads into the toolkit by the directory of a version, not by its link."""
    for _ in range(MOST_LINKS):
        if path.is_relative_to(layout.toolkit):
            return False
        if path.is_relative_to(layout.versions):
            return True
        links = [above for above in (path, *path.parents) if host.link_target(above) is not None]
        if not links:
            return False
        first = links[-1]
        target = first.parent / (host.link_target(first) or "") / path.relative_to(first)
        path = PurePosixPath(normpath(target))
    return False


def list_places(host: Host, layout: Layout) -> tuple[str, ...]:
    """List the directories of the toolkit, also behind a link in the place of the install-dir."""
    directories: list[str] = []
    for install_dir in dict.fromkeys((layout.install_dir, host.resolve(layout.install_dir))):
        its_layout = Layout(install_dir)
        directories += [str(its_layout.toolkit), str(its_layout.home)]
    return tuple(directories)


def find_paths(text: str, places: Collection[str]) -> list[PurePosixPath]:
    """Find the paths below some directories among the words of a text: YAML, JSON or a script."""
    text = text.replace("\\/", "/")
    if not any(place in text for place in places):
        return []
    directories = "|".join(map(re.escape, places))  # may contain characters that end a word
    words = rf"""(?<![^\s"'=:,;\[({{<|>])(?:{directories})[^\s\0"',:;\[\](){{}}<|>]*"""
    return [PurePosixPath(word) for word in re.findall(words, COMMENT.sub("", text))]
