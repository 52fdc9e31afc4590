"""The node's shell and what it links to: enough to run a container without an image of anybody's."""

import re
import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.verify import DIRECTORY, LOADER, SHELL, Tools
from installer.host.files import Host
from installer.host.programs import run_in

ROOT: Final = PurePosixPath("/")
SH: Final = PurePosixPath("/bin/sh")
ASK_S: Final = 5.0
ELF64: Final = b"\x7fELF\x02\x01"
HEADER: Final = struct.Struct("<16xHHIQQQIHHH")  # to e_phnum
SEGMENT: Final = struct.Struct("<IIQQQQQQ")
PT_INTERP: Final = 3
_LINKED: Final = re.compile(r"^\s+(\S+) => (/\S+) \(0x", re.MULTILINE)


def shell_of(host: Host) -> Tools:
    """Return the files that the node's shell consists of.

    Raises:
        InstallerError: the node has no shell that could be used.
    """
    path = host.resolve(SH)
    file = host.read(path)
    if file is None:
        raise _unusable(f"{SH} is not there")
    if not file.content.startswith(ELF64):
        raise _unusable(f"{path} is no program of 64 bits")
    loader = interpreter(file.content)
    if loader is None:
        return Tools(((path, SHELL),), loader=False)
    linked = dict(_linked(host, loader, path))
    files = [(path, SHELL), (host.resolve(loader), LOADER)]
    files += [(host.resolve(there), DIRECTORY / name) for name, there in linked.items()]
    return Tools(tuple(files), loader=True)


def interpreter(content: bytes) -> PurePosixPath | None:
    """Return the dynamic loader that a program names; None for a static one.

    Raises:
        InstallerError: the file is cut short.
    """
    try:
        _, _, _, _, first, _, _, _, size, count = HEADER.unpack_from(content)
        for number in range(count):
            kind, _, offset, _, _, length, _, _ = SEGMENT.unpack_from(content, first + number * size)
            if kind == PT_INTERP:
                return PurePosixPath(content[offset : offset + length].rstrip(b"\0").decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise _unusable("it is no whole program") from error
    return None


def _linked(host: Host, loader: PurePosixPath, path: PurePosixPath) -> Iterator[tuple[str, PurePosixPath]]:
    ran = run_in(host.local_path(ROOT), [str(loader), "--list", str(path)], timeout_s=ASK_S)
    if ran is None or ran.returncode:
        raise _unusable(f"{loader} does not tell what {path} links to")
    for name, there in _LINKED.findall(ran.stdout):
        yield name, PurePosixPath(there)


def _unusable(reason: str) -> InstallerError:
    return InstallerError(
        f"make a container of what the node has ({reason})",
        remedy="run a GPU pod of your own instead",
        code="verify-failed",
    )
