"""The node's own shell as the only program of verify's test containers: no image has to be pulled."""

import re
import struct
import time
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.errors import InstallerError
from installer.host.events import escape
from installer.host.files import Host
from installer.host.programs import run_in
from installer.model.files import ROOT

MARK: Final = "toolkit-installer-verify"  # all names of test containers, pods and images begin so
DIRECTORY: Final = PurePosixPath("/verify")  # in the container: the shell of the node and its libraries
SHELL: Final = DIRECTORY / "sh"
LOADER: Final = DIRECTORY / "ld"
WAITS: Final = "read x"  # a built-in of the shell: the container has no other program
SH: Final = PurePosixPath("/bin/sh")
ASK_S: Final = 5.0
ELF64: Final = b"\x7fELF\x02\x01"
# elf(5), 64 bits, little-endian: offset of the program headers, size of each, number of them
ELF_HEADER: Final = struct.Struct("<32xQ14xHH6x")
# type, offset and size in the file
PROGRAM_HEADER: Final = struct.Struct("<I4xQ16xQ")
PT_INTERP: Final = 3  # the program header that names the dynamic loader
LINKED: Final = re.compile(r"^[ \t]+(\S+) => (/\S+) \(0x", re.MULTILINE)
LAST_LINES: Final = 5  # of the output of a container that has ended by itself
END_SEEN_S: Final = 2.0  # for an engine to see the end of a container
RETRY_S: Final = 0.2  # between two tries to remove a test container


class Tools(Struct, frozen=True):
    """Files of the node, each with its path in the container; ``loader`` tells of a loader among them."""

    files: tuple[tuple[PurePosixPath, PurePosixPath], ...]
    loader: bool

    def command(self, script: str) -> list[str]:
        """Return the words to run ``script`` in the container."""
        words = [str(SHELL), "-c", script]
        if self.loader:
            words = [str(LOADER), "--library-path", str(DIRECTORY), *words]
        return words


def shell_of(host: Host) -> Tools:
    """List the files of the node's shell.

    Raises:
        InstallerError: the shell cannot be used in a container.
    """
    path = host.resolve(SH)
    file = host.read(path)
    if file is None:
        raise _unusable(f"{SH} is not there")
    if not file.content.startswith(ELF64):
        raise _unusable(f"{path} is no program of 64 bits")
    named = find_loader(file.content)
    if named is None:  # a static program
        return Tools(((path, SHELL),), loader=False)
    loader = PurePosixPath(named)
    ran = run_in(host.local_path(ROOT), [str(loader), "--list", str(path)], timeout_s=ASK_S)
    if ran is None or ran.returncode:
        raise _unusable(f"{loader} does not list the libraries of {path}")
    linked = {DIRECTORY / name: there for name, there in LINKED.findall(ran.stdout)}
    files = {SHELL: path, LOADER: host.resolve(loader)}
    for inside, library in linked.items():
        files[inside] = host.resolve(PurePosixPath(library))
    pairs = tuple((there, inside) for inside, there in files.items())
    return Tools(pairs, loader=True)


def find_loader(program: bytes) -> str | None:
    """Return the dynamic loader that an ELF program of 64 bits names; None of a static or a damaged program.

    See elf(5). The text may stand anywhere in the file: on Debian 13 it stands behind the notes.
    """
    if len(program) < ELF_HEADER.size:
        return None
    table, length, count = ELF_HEADER.unpack_from(program)
    for number in range(count):
        start = table + number * length
        if start + PROGRAM_HEADER.size > len(program):
            return None
        kind, offset, size = PROGRAM_HEADER.unpack_from(program, start)
        if kind == PT_INTERP:
            name = program[offset : offset + size].rstrip(b"\0")
            return name.decode(errors="replace") or None
    return None


def refuse_ended(look: Callable[[], InstallerError | None]) -> None:
    """Raise the error of a look at a container that has ended by itself; engines see an end a moment later.

    Args:
        look: returns the error, None while the container runs.
    """
    deadline = time.monotonic() + END_SEEN_S
    while time.monotonic() < deadline:
        error = look()
        if error is not None:
            raise error
        time.sleep(RETRY_S)


def explain_end(exit_code: int, reason: str = "", output: str = "") -> InstallerError:
    """Explain why a script could not be run: the container has ended by itself.

    Args:
        exit_code: the exit code of the container.
        reason: the engine's reason, "" for none.
        output: the end of the container's output, "" if the engine keeps none.
    """
    text = f"it ended at once with exit code {exit_code}"
    if reason:
        text += f": {reason}"
    lines = output.split()
    if lines:
        text += f"; its last lines: {escape(' '.join(lines)[-300:])}"
    problem = f"run a container ({text})"
    return InstallerError(problem, remedy="see the log of the engine", code="verify-failed")


def _unusable(reason: str) -> InstallerError:
    problem = f"make a test container from the node's files ({reason})"
    return InstallerError(problem, remedy="run a GPU pod of your own instead", code="verify-failed")
