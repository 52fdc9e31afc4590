"""What stands at a path of the host, and what a payload puts there, as plain data."""

from enum import StrEnum
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from msgspec import Struct, field

EXECUTE: Final = 0o111  # by everybody
OTHERS_WRITE: Final = 0o022


class Kind(StrEnum):
    """What stands at a path; a symlink is followed unless said otherwise."""

    ABSENT = "absent"
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


class Meta(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file is apart from its content: permission bits, owner, group, extended attributes.

    A new file has no owner to keep (None): it belongs to whoever makes it.
    """

    mode: int = 0o644
    uid: int | None = None
    gid: int | None = None
    xattrs: tuple[tuple[str, bytes], ...] = ()


class File(Struct, frozen=True):
    """A regular file: its bytes and what else it is."""

    content: bytes
    meta: Meta = field(default_factory=Meta)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the content, in hex."""
        return sha256(self.content).hexdigest()


class Entry(Struct, frozen=True):
    """What a directory listing tells of a file, a link or a directory, without reading it."""

    size_bytes: int
    mode: int
    link: str = ""
    owned: bool = True  # by root, or by us where we are not root
    directory: bool = False
    capabilities: bool = False  # whoever executes it gets some (capabilities(7))


class Copy(Struct, frozen=True):
    """A file of the source."""

    path: PurePosixPath
    source: PurePosixPath  # as this process sees it
    size_bytes: int
    digest: str  # sha256 in hex
    mode: int


class Text(Struct, frozen=True):
    """A file that we write ourselves."""

    path: PurePosixPath
    content: str
    mode: int


class Symlink(Struct, frozen=True):
    """A relative link to a neighbour, or one to a program of the host's."""

    path: PurePosixPath
    target: str


# What a version directory holds, named by paths relative to it.
PayloadFile: TypeAlias = Copy | Text | Symlink

HEAD_BYTES: Final = 256  # as much as the kernel reads of a script's first line (BINPRM_BUF_SIZE)


class Artifact(Struct, frozen=True):
    """What was found in the toolkit's source for the required ``name``."""

    name: str  # such as libnvidia-container.so.1
    file_name: str  # with symlinks resolved, such as libnvidia-container.so.1.17.4
    source: PurePosixPath  # as this process sees it
    size_bytes: int
    mode: int
    digest: str  # sha256 in hex
    head: bytes  # the first ``HEAD_BYTES``: the ELF header, or the line that names a script's interpreter
    place: PurePosixPath = PurePosixPath()  # below the source's root

    @property
    def own_path(self) -> PurePosixPath:
        """The path on the host where the source is the host itself."""
        return PurePosixPath("/") / self.place

    @property
    def interpreter(self) -> PurePosixPath | None:
        """The program that runs this script; None where it is no script, or names none by its whole path."""
        line = self.head.partition(b"\n")[0]
        words = line.removeprefix(b"#!").split() if line.startswith(b"#!") else []
        path = PurePosixPath(words[0].decode(errors="surrogateescape")) if words else PurePosixPath()
        return path if path.is_absolute() else None
