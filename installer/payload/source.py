"""What the toolkit's source holds, by the names we ship."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from installer.host.inodes import translated
from installer.host.programs import find_file, run_in
from installer.host.trees import digest_of
from installer.model.files import HEAD_BYTES, Artifact
from installer.payload.files import LIBRARIES, REQUIRED, search_paths

ASK_S: Final = 2.0
ASKED: Final = "nvidia-ctk"
LIBRARY: Final = "libnvidia-container.so.1"
_VERSION_SAID: Final = re.compile(r"\bCLI version v?(\d{1,6}(?:\.\d{1,6}){2})\b")
_VERSION_IN_NAME: Final = re.compile(r"\.so\.(\d{1,6}(?:\.\d{1,6}){2})$")


def ask_version(root: PurePosixPath, sums: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the version of the toolkit below ``root``: as its program says, else as its library is named.

    A release that is yet to come (``1.18.0-rc.1``) counts as it. All packages of a source with ``sums`` have
    one version: the name tells it.
    """
    program, library = find_artifact(root, ASKED), find_artifact(root, LIBRARY)
    by_name = _read_version(_VERSION_IN_NAME, library.name if library else "")
    if program is None or (sums and by_name):
        return by_name
    ran = run_in(Path("/"), (str(program), "--version"), timeout_s=ASK_S)
    return (_read_version(_VERSION_SAID, ran.stdout) if ran and not ran.returncode else None) or by_name


def _read_version(pattern: re.Pattern[str], text: str) -> tuple[int, ...] | None:
    found = pattern.search(text)
    return tuple(int(number) for number in found[1].split(".")) if found else None


def read_artifacts(root: PurePosixPath, sums: Mapping[str, str]) -> tuple[Artifact, ...]:
    """Return the files of the toolkit below ``root``, a path as this process sees it.

    A file in ``sums`` is not read as a whole.

    Raises:
        InstallerError: one cannot be read.
    """
    places = ((name, _find(root, name)) for name in REQUIRED)
    return tuple(_read(root, name, place, sums) for name, place in places if place)


def find_artifact(root: PurePosixPath, name: str) -> PurePosixPath | None:
    """Return where one file of the toolkit is below ``root``, no link left."""
    place = _find(root, name)
    return PurePosixPath(Path(root / place).resolve()) if place else None


def _find(root: PurePosixPath, name: str) -> PurePosixPath | None:
    return find_file(root, search_paths(name), executable=name not in LIBRARIES)


def _read(root: PurePosixPath, name: str, place: PurePosixPath, sums: Mapping[str, str]) -> Artifact:
    top, path = Path(root).resolve(), Path(root / place).resolve()
    with translated("read", PurePosixPath(path)), path.open("rb") as file:
        status = path.stat()
        head = file.read(HEAD_BYTES)
    known = sums.get(str(path.relative_to(top)), "") if path.is_relative_to(top) else ""
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
