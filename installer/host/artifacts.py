"""What the toolkit's source holds, by the names we ship."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from installer.decide.toolkit import HEAD_BYTES, LIBRARIES, REQUIRED, Artifact, search_paths
from installer.host.inodes import translated


def machine() -> str:
    """Return the node's architecture as uname(2) names it."""
    return os.uname().machine


@contextmanager
def found_artifacts(root: PurePosixPath) -> Iterator[Callable[[], tuple[Artifact, ...]]]:
    """Read the files of the toolkit below ``root``, a path as this process sees it, while the block goes on.

    What is yielded returns them, and raises InstallerError where one cannot be read.
    """
    found = [(name, path) for name in REQUIRED if (path := _find(Path(root), name)) is not None]
    with ThreadPoolExecutor() as pool:
        reads = [pool.submit(_read, name, path) for name, path in found]
        yield lambda: tuple(read.result() for read in reads)


def find_artifact(root: PurePosixPath, name: str) -> PurePosixPath | None:
    """Return where one file of the toolkit is below ``root``."""
    found = _find(Path(root), name)
    return PurePosixPath(found) if found else None


def _find(root: Path, name: str) -> Path | None:
    executable = name not in LIBRARIES
    for path in (root / place for place in search_paths(name)):
        if path.is_file() and (not executable or path.stat().st_mode & 0o111):
            return path.resolve()
    return None


def _read(name: str, path: Path) -> Artifact:
    with translated("read", PurePosixPath(path)), path.open("rb") as file:
        status = os.fstat(file.fileno())
        head = file.read(HEAD_BYTES)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(
        name,
        path.name,
        PurePosixPath(path),
        status.st_size,
        status.st_mode & 0o7777,
        digest,
        head,
    )
