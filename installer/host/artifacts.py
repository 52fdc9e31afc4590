"""What the toolkit's source holds, by the names we ship."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.artifacts import search_paths
from installer.decide.toolkit import HEAD_BYTES, LIBRARIES, REQUIRED, Artifact
from installer.host.digests import digest_of, mark_of
from installer.host.inodes import translated
from installer.host.programs import Ran, run_beside
from installer.host.threads import beside

ASK_S: Final = 2.0
ASKED: Final = "nvidia-ctk"
NAMED: Final = "libnvidia-container.so.1"
_SAYS: Final = re.compile(r"\bCLI version v?(\d{1,6}(?:\.\d{1,6}){2})\b")
_NAMED: Final = re.compile(r"\.so\.(\d{1,6}(?:\.\d{1,6}){2})$")


@contextmanager
def asked_version(
    root: PurePosixPath, sums: Mapping[str, str]
) -> Iterator[Callable[[], tuple[int, ...] | None]]:
    """Ask the toolkit below ``root`` for its version while the block goes on.

    What is yielded returns it: as its program says, else as the name of its library does; None where neither
    is to be had. A release that is yet to come (``1.18.0-rc.1``) counts as it. All packages of a source with
    ``sums`` have one version: the name tells it.
    """
    program, named = find_artifact(root, ASKED), _named(root)
    if program is None or (sums and named):
        yield lambda: _numbers(named)
        return
    with run_beside(program, ("--version",)) as ended:
        yield lambda: _numbers(_said(ended(ASK_S)) or named)


def _said(ran: Ran | None) -> str:
    """Return the version that a program said; "" where it said none."""
    said = _SAYS.search(ran.stdout) if ran is not None and ran.returncode == 0 else None
    return said[1] if said else ""


def _named(root: PurePosixPath) -> str:
    """Return the version in the name of the toolkit's library; "" where there is none."""
    library = find_artifact(root, NAMED)
    named = _NAMED.search(library.name) if library else None
    return named[1] if named else ""


def _numbers(version: str) -> tuple[int, ...] | None:
    return tuple(int(number) for number in version.split(".")) if version else None


def machine() -> str:
    """Return the node's architecture as uname(2) names it."""
    return os.uname().machine


@contextmanager
def found_artifacts(
    root: PurePosixPath, sums: Mapping[str, str]
) -> Iterator[Callable[[], tuple[Artifact, ...]]]:
    """Read the files of the toolkit below ``root``, a path as this process sees it, while the block goes on.

    What is yielded returns them, and raises InstallerError where one cannot be read. One in ``sums`` is not
    read as a whole.
    """
    top = Path(root).resolve()
    found = [
        (name, place, (Path(root) / place).resolve())
        for name in REQUIRED
        if (place := _find(Path(root), name)) is not None
    ]
    with beside() as begun:
        reads = []
        for name, place, path in found:
            known = sums.get(str(path.relative_to(top)), "") if path.is_relative_to(top) else ""
            long = not known and bool(mark_of(str(path)))
            reads.append(begun(partial(_read, name, place, path, known), long=long))
        yield lambda: tuple(read() for read in reads)


def find_artifact(root: PurePosixPath, name: str) -> PurePosixPath | None:
    """Return where one file of the toolkit is below ``root``."""
    place = _find(Path(root), name)
    return PurePosixPath((Path(root) / place).resolve()) if place else None


def _find(root: Path, name: str) -> PurePosixPath | None:
    executable = name not in LIBRARIES
    for place in search_paths(name):
        path = root / place
        if path.is_file() and (not executable or path.stat().st_mode & 0o111):
            return place
    return None


def _read(name: str, place: PurePosixPath, path: Path, known: str) -> Artifact:
    with translated("read", PurePosixPath(path)), path.open("rb") as file:
        status = os.fstat(file.fileno())
        head = file.read(HEAD_BYTES)
    return Artifact(
        name,
        path.name,
        PurePosixPath(path),
        status.st_size,
        status.st_mode & 0o7777,
        known or digest_of(str(path)),
        head,
        place,
    )
