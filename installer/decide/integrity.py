"""What was installed and what stands there now: a program that is missing, changed or not ours is drift."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final, TypeAlias, assert_never

from installer.decide.inode import EXECUTE, Entry
from installer.decide.toolkit import (
    CONFIG,
    EXECUTABLES,
    Copy,
    PayloadFile,
    Symlink,
    Text,
    text_digest,
)
from installer.decide.wrapper import real_name

FILE: Final = "sha256:"
LINK: Final = "link:"
OTHERS_WRITE: Final = 0o022
NOT_OWNED: Final = "owned by another user than root"
WRITABLE: Final = "writable by others than root"
SPECIAL_BITS: Final = 0o7000
ALL_READ: Final = 0o444
PROGRAMS: Final = frozenset(
    PurePosixPath(name) for program in EXECUTABLES for name in (program.name, real_name(program.name))
)

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


def programs_in_place(wanted: Manifest) -> tuple[PurePosixPath, ...]:
    """Return the programs of the host's that a version leads to; () for one that has its own."""
    return tuple(
        PurePosixPath(target)
        for identity in wanted.values()
        if identity.startswith(LINK) and (target := identity.removeprefix(LINK)).startswith("/")
    )


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
        elif (
            entry.directory
            or not identity.startswith(kind)
            or (kind == LINK and identity != f"{LINK}{entry.link}")
        ):
            yield name, "replaced"
        elif kind == FILE and (flaw := access_flaw(path, entry)):
            yield name, flaw
        elif kind == FILE and digests is not None and identity != f"{FILE}{digests.get(path)}":
            yield name, "changed"
    for path in sorted(found):
        # This directory comes first in the PATH of our programs, which root runs.
        if str(path) not in wanted and (flaw := _unexpected(path, found[path])):
            yield str(path), flaw


def _unexpected(path: PurePosixPath, entry: Entry) -> str:
    """Return what is wrong with a name that the manifest does not know; "" where nothing is."""
    if entry.directory or path == CONFIG:
        return access_flaw(path, entry)
    return "not ours" if path.parent == PurePosixPath() else ""


def access_flaw(path: PurePosixPath, entry: Entry) -> str:
    """Return who may do too much or too little with a file or directory of a version; "" where it is right.

    An administrator may keep config.toml from being read: only who may write it is told of it.
    """
    if not entry.owned:
        return NOT_OWNED
    if entry.mode & OTHERS_WRITE:
        return WRITABLE
    if not entry.directory and path != CONFIG:
        if entry.mode & SPECIAL_BITS:
            return "setuid, setgid or sticky"
        if entry.capabilities:
            return "given capabilities"
    if (path in PROGRAMS or entry.directory) and EXECUTE & ~entry.mode:
        return "not accessible to everybody" if entry.directory else "not executable by everybody"
    return "not readable by everybody" if ALL_READ & ~entry.mode and path != CONFIG else ""
