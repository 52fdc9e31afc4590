"""What the toolkit's source holds, by the names we ship."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from installer.host.inodes import translated
from installer.host.limits import beside
from installer.host.programs import Ran, find_file, run_beside
from installer.host.trees import digest_of, mark_of
from installer.model.files import HEAD_BYTES, Artifact
from installer.payload.files import LIBRARIES, REQUIRED, search_paths

ASK_S: Final = 2.0
ASKED: Final = "nvidia-ctk"
LIBRARY: Final = "libnvidia-container.so.1"
_VERSION_SAID: Final = re.compile(r"\bCLI version v?(\d{1,6}(?:\.\d{1,6}){2})\b")
_VERSION_IN_NAME: Final = re.compile(r"\.so\.(\d{1,6}(?:\.\d{1,6}){2})$")


@contextmanager
def ask_version(
    root: PurePosixPath, sums: Mapping[str, str]
) -> Iterator[Callable[[], tuple[int, ...] | None]]:
    """Ask the toolkit below ``root`` for its version while the block goes on.

    What is yielded returns it: as its program says, else as the name of its library does; None where neither
    is to be had. A release that is yet to come (``1.18.0-rc.1``) counts as it. All packages of a source with
    ``sums`` have one version: the name tells it.
    """
    program, library = find_artifact(root, ASKED), find_artifact(root, LIBRARY)
    by_name = _version(_VERSION_IN_NAME, library.name if library else "")
    if program is None or (sums and by_name):
        yield lambda: by_name
        return
    with run_beside(program, ("--version",)) as ended:
        yield lambda: _said(ended(ASK_S)) or by_name


def _said(ran: Ran | None) -> tuple[int, ...] | None:
    return _version(_VERSION_SAID, ran.stdout) if ran is not None and ran.returncode == 0 else None


def _version(pattern: re.Pattern[str], text: str) -> tuple[int, ...] | None:
    found = pattern.search(text)
    return tuple(int(number) for number in found[1].split(".")) if found else None


@contextmanager
def read_artifacts(
    root: PurePosixPath, sums: Mapping[str, str]
) -> Iterator[Callable[[], tuple[Artifact, ...]]]:
    """Read the files of the toolkit below ``root``, a path as this process sees it, while the block goes on.

    What is yielded returns them, and raises InstallerError where one cannot be read. One in ``sums`` is not
    read as a whole.
    """
    top = Path(root).resolve()
    with beside() as begun:
        reads = []
        for name in REQUIRED:
            if (place := _find(root, name)) is None:
                continue
            path = Path(root / place).resolve()
            known = sums.get(str(path.relative_to(top)), "") if path.is_relative_to(top) else ""
            long = not known and bool(mark_of(str(path)))
            reads.append(begun(partial(_read, name, place, path, known), long=long))
        yield lambda: tuple(read() for read in reads)


def find_artifact(root: PurePosixPath, name: str) -> PurePosixPath | None:
    """Return where one file of the toolkit is below ``root``."""
    place = _find(root, name)
    return PurePosixPath(Path(root / place).resolve()) if place else None


def _find(root: PurePosixPath, name: str) -> PurePosixPath | None:
    return find_file(root, search_paths(name), executable=name not in LIBRARIES)


def _read(name: str, place: PurePosixPath, here: Path, known: str) -> Artifact:
    with translated("read", PurePosixPath(here)), here.open("rb") as file:
        status = here.stat()
        head = file.read(HEAD_BYTES)
    return Artifact(
        name,
        here.name,
        PurePosixPath(here),
        status.st_size,
        status.st_mode & 0o7777,
        known or digest_of(str(here)),
        head,
        place,
    )
