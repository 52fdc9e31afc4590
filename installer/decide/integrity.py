"""What was installed and what stands there now: a program that is missing, changed or not ours is drift."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final, TypeAlias, assert_never

from installer.decide.inode import Entry
from installer.decide.toolkit import CONFIG, Copy, PayloadFile, Symlink, Text, text_digest

FILE: Final = "sha256:"
LINK: Final = "link:"
OTHERS_WRITE: Final = 0o022

# By path within the version: sha256:DIGEST, or link:TARGET.
Manifest: TypeAlias = Mapping[str, str]


def manifest(files: Iterable[PayloadFile]) -> dict[str, str]:
    """Return what a version is to be; config.toml is left out, for administrators edit it."""
    return {str(file.path): _identity(file) for file in files if file.path != CONFIG}


def _identity(file: PayloadFile) -> str:
    match file:
        case Copy():
            return f"{FILE}{file.digest}"
        case Text():
            return f"{FILE}{text_digest(file)}"
        case Symlink():
            return f"{LINK}{file.target}"
        case _:
            assert_never(file)


def damage(
    wanted: Manifest,
    found: Mapping[PurePosixPath, Entry],
    digests: Mapping[PurePosixPath, str] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield each path of a version that is not as it was installed, and what is wrong with it.

    Without ``digests`` nothing is said about what is in the files.
    """
    for name, identity in wanted.items():
        path = PurePosixPath(name)
        entry = found.get(path)
        kind = LINK if entry and entry.link else FILE
        if entry is None:
            yield name, "missing"
        elif not identity.startswith(kind) or (kind == LINK and identity != f"{LINK}{entry.link}"):
            yield name, "replaced"
        elif kind == FILE and entry.mode & OTHERS_WRITE:
            yield name, "writable by others than root"
        elif kind == FILE and digests is not None and identity != f"{FILE}{digests.get(path)}":
            yield name, "changed"
    for path in sorted(found):
        # This directory comes first in the PATH of our programs, which root runs.
        if path.parent == PurePosixPath() and str(path) not in wanted:
            yield str(path), "not ours"
