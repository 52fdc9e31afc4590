"""Every host path, what stands there, what a payload puts there, and the JSON of our own files."""

import json
from enum import StrEnum
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, convert, field, to_builtins

T = TypeVar("T")
ROOT: Final = PurePosixPath("/")
HOME: Final = ".toolkit-installer"
# How the names of published files end: node_exporter's, what ``run`` serves, and where; labels end otherwise.
METRICS, ANSWER, SOCKET = ".prom", ".openmetrics", ".sock"
VERSIONS: Final = f"{HOME}/versions/"  # how the toolkit's link begins: so it holds in every mount of the host
DEFAULT_INSTALL_DIR: Final = PurePosixPath("/usr/local/nvidia")
DEFAULT_DRIVER_ROOT: Final = PurePosixPath("/run/nvidia/driver")
RUN_DIR: Final = PurePosixPath("/run/nvidia/toolkit")
# systemd's own socket first: only root may speak there. On the bus every user can send us messages.
SYSTEM_BUSES: Final = (PurePosixPath("/run/systemd/private"), PurePosixPath("/run/dbus/system_bus_socket"))
# Where distributions put programs, relative to a root.
EXECUTABLE_DIRS: Final = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
# Where systemd and shells look for programs that a word names, unless set otherwise.
PATH: Final = tuple(PurePosixPath("/", place) for place in EXECUTABLE_DIRS)
# Where distributions put the driver's libraries when it is installed on the host itself.
DRIVER_LIBRARY_DIRS: Final = tuple(
    PurePosixPath(path)
    for path in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")
)
EXECUTE: Final = 0o111  # by everybody
OTHERS_WRITE: Final = 0o022


class Layout:
    """The paths below one install-dir, as the host sees them."""

    def __init__(self, install_dir: PurePosixPath = DEFAULT_INSTALL_DIR) -> None:
        self.install_dir = install_dir
        self.toolkit = install_dir / "toolkit"  # the symlink that engines name their runtimes through
        self.config = self.toolkit / ".config/nvidia-container-runtime/config.toml"
        self.cdi_hook = self.toolkit / "nvidia-cdi-hook"  # which our CDI specifications name
        self.home = install_dir / HOME  # the directory that is ours alone
        self.ledger = self.home / "ledger"  # what we hold on this node and what was there before
        self.counts = self.home / "counts"  # what has happened on this node, for its metrics
        self.made = self.home / "made"  # what ``verify`` makes in the engines, by name
        self.answer = self.home / f"metrics{ANSWER}"  # what those are sent who ask ``run`` for metrics
        self.backups = self.home / "backups"  # files as they were before us
        # Configs as they were before an install whose ledger, which says where they stood, is lost.
        self.unclaimed = self.home / "unclaimed"
        self.check = self.home / "check"  # where CRI-O's drop-ins are put together for its own program
        self.replaced = self.home / "replaced"  # a toolkit directory of another installer, kept for undo
        self.versions = self.home / "versions"  # one directory for each payload

    def version(self, digest: str) -> PurePosixPath:
        """Return the directory of one payload."""
        return self.versions / digest


class Kind(StrEnum):
    """What stands at a path; a symlink is followed unless said otherwise."""

    ABSENT = "absent"
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


class Meta(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file is apart from its content."""

    mode: int = 0o644
    uid: int | None = None  # a new file has no owner to keep: it belongs to whoever makes it
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


def says(words: str) -> msgspec.Meta:
    """Return what the schema of a document says of one of its fields."""
    return msgspec.Meta(description=words)


def dumps(thing: object, indent: int | None = None) -> bytes:
    """Return a thing as a line, or as lines: a path that is no UTF-8 as escapes of its lone surrogates."""
    return json.dumps(to_builtins(thing, enc_hook=str), indent=indent).encode() + b"\n"


def loads(content: bytes, kind: type[T]) -> T:
    """Return what ``dumps`` made a text of; ValueError: it is none of that kind; RecursionError: too deep."""
    return convert(json.loads(content), kind, dec_hook=lambda path, word: path(word))
