"""What stands at a path of the host, as plain data."""

from enum import StrEnum
from hashlib import sha256
from typing import Final

from installer.decide.data import dataclass, field

EXECUTE: Final = 0o111  # by everybody


class Kind(StrEnum):
    """What stands at a path; a symlink is followed unless said otherwise."""

    ABSENT = "absent"
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Meta:
    """What a file is apart from its content: permission bits, owner, group, extended attributes.

    A new file has no owner to keep (None): it belongs to whoever makes it.
    """

    mode: int = 0o644
    uid: int | None = None
    gid: int | None = None
    xattrs: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class File:
    """A regular file: its bytes and what else it is."""

    content: bytes
    meta: Meta = field(default_factory=Meta)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the content, in hex."""
        return sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """What a directory listing tells of a file, a link or a directory, without reading it.

    ``owned`` says that it is root's, or ours where we are not root; ``capabilities`` that whoever executes
    it gets some (capabilities(7)).
    """

    size_bytes: int
    mode: int
    link: str = ""
    owned: bool = True
    directory: bool = False
    capabilities: bool = False
