"""Host paths, the files at paths, the files of a payload, and the JSON of our own files."""

import json
from enum import StrEnum
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, convert, field, to_builtins

T = TypeVar("T")
ROOT: Final = PurePosixPath("/")
HOME: Final = ".toolkit-installer"
# The suffixes of published files; labels have other suffixes.
METRICS: Final = ".prom"  # for node_exporter
ANSWER: Final = ".openmetrics"  # the answer that ``run`` serves
SOCKET: Final = ".sock"  # the socket on which ``run`` serves the answer
VERSIONS: Final = f"{HOME}/versions/"  # the toolkit's link begins so: a relative link works in every mount
NOTES: Final = PurePosixPath(".config/digests")  # in a version of the toolkit: the digests noted at its copy
DEFAULT_INSTALL_DIR: Final = PurePosixPath("/usr/local/nvidia")
DEFAULT_DRIVER_ROOT: Final = PurePosixPath("/run/nvidia/driver")
RUN_DIR: Final = PurePosixPath("/run/nvidia/toolkit")
# systemd's own socket first: only root may speak there. On the bus every user can send us messages.
SYSTEM_BUSES: Final = (PurePosixPath("/run/systemd/private"), PurePosixPath("/run/dbus/system_bus_socket"))
# Distributions' directories of programs, relative to a root.
EXECUTABLE_DIRS: Final = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
# The default PATH of systemd and shells.
PATH: Final = tuple(PurePosixPath("/", directory) for directory in EXECUTABLE_DIRS)
# Distributions' directories of the driver's libraries, for a driver that is installed on the host itself.
DRIVER_LIBRARY_DIRS: Final = (
    PurePosixPath("/usr/lib64"),
    PurePosixPath("/usr/lib/x86_64-linux-gnu"),
    PurePosixPath("/usr/lib/aarch64-linux-gnu"),
    PurePosixPath("/usr/lib"),
)
EXECUTE: Final = 0o111  # by everybody
OTHERS_WRITE: Final = 0o022


def host_path(text: str) -> PurePosixPath:
    """Return the path in a text; pathlib keeps two leading slashes, which Linux reads as one."""
    if text.startswith("//"):
        return PurePosixPath("/", text.lstrip("/"))
    return PurePosixPath(text)


class Layout:
    """The paths below an install-dir, as the host sees them."""

    def __init__(self, install_dir: PurePosixPath = DEFAULT_INSTALL_DIR) -> None:
        self.install_dir = install_dir
        self.toolkit = install_dir / "toolkit"  # the symlink in the paths of runtimes in engines' configs
        self.config = self.toolkit / ".config/nvidia-container-runtime/config.toml"
        self.cdi_hook = self.toolkit / "nvidia-cdi-hook"  # the hook of our CDI specifications
        self.home = install_dir / HOME  # the directory that is ours alone
        self.ledger = self.home / "ledger"  # our changes of this node, and the state before them
        self.counts = self.home / "counts"  # counts of events on this node, for its metrics
        self.made = self.home / "made"  # the names of the objects that ``verify`` makes in the engines
        self.answer = self.home / f"metrics{ANSWER}"  # the answer of ``run`` to a request for metrics
        self.backups = self.home / "backups"  # files as they were before our install
        # Configs as before an install with a lost ledger: the ledger has their paths.
        self.unclaimed = self.home / "unclaimed"
        self.check = self.home / "check"  # the copy of CRI-O's drop-ins for a dry run by its own program
        # The toolkit's directory of another installer, or the owner's link in its place, kept for an undo.
        self.replaced = self.home / "replaced"
        self.versions = self.home / "versions"  # a directory for each payload

    def version(self, digest: str) -> PurePosixPath:
        """Return the directory of a payload."""
        return self.versions / digest


class Kind(StrEnum):
    """The kind of file at a path; a symlink is followed by default."""

    ABSENT = "absent"
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    FIFO = "fifo"
    OTHER = "other"


class Meta(Struct, frozen=True, forbid_unknown_fields=True):
    """The mode, the owner and the attributes of a file."""

    mode: int = 0o644
    uid: int | None = None  # None for a new file: it belongs to the process that makes the file
    gid: int | None = None
    xattrs: tuple[tuple[str, bytes], ...] = ()


class File(Struct, frozen=True):
    """A regular file with metadata."""

    content: bytes
    meta: Meta = field(default_factory=Meta)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the content, in hex."""
        return sha256(self.content).hexdigest()


class Entry(Struct, frozen=True):
    """A file, a link or a directory in the listing of a directory, without its content."""

    size_bytes: int
    mode: int
    link: str = ""
    owned: bool = True  # by root, or by us where we are not root
    directory: bool = False
    capabilities: bool = False  # the program gets capabilities when it is executed (capabilities(7))


class Copy(Struct, frozen=True):
    """A file of the source."""

    path: PurePosixPath
    source: PurePosixPath  # as this process sees it
    size_bytes: int
    digest: str  # sha256 in hex
    mode: int


class Text(Struct, frozen=True):
    """A file written by us."""

    path: PurePosixPath
    content: str
    mode: int


class Symlink(Struct, frozen=True):
    """A relative link to a neighbour, or a link to a program of the host."""

    path: PurePosixPath
    target: str


class Carried(Struct, frozen=True):
    """An owner's file in the directory of the former toolkit: an engine's config names the file."""

    path: PurePosixPath
    source: PurePosixPath  # as this process sees it, without links
    size_bytes: int
    target: str = ""  # of a link out of the toolkit, which is made again


# A file of a version directory, with a path relative to the directory.
PayloadFile: TypeAlias = Copy | Text | Symlink | Carried

HEAD_BYTES: Final = 256  # as much as the kernel reads of a script's first line (BINPRM_BUF_SIZE)


class Artifact(Struct, frozen=True):
    """The file in the toolkit's source for the required ``name``."""

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
        """The path on the host, for a source that is the host itself."""
        return PurePosixPath("/") / self.place

    @property
    def interpreter(self) -> PurePosixPath | None:
        """The program that runs this script; None for no script, or an interpreter without absolute path."""
        line, _, _ = self.head.partition(b"\n")
        if not line.startswith(b"#!"):
            return None
        words = line.removeprefix(b"#!").split()
        if not words:
            return None
        path = PurePosixPath(words[0].decode(errors="surrogateescape"))
        return path if path.is_absolute() else None


def says(words: str) -> msgspec.Meta:
    """Return the description of a field in the schema of a document."""
    return msgspec.Meta(description=words)


def dumps(thing: object, indent: int | None = None) -> bytes:
    """Encode a value as JSON, on a single line without ``indent``; paths keep bytes that are no UTF-8.

    A byte that is no UTF-8 becomes the escape of a lone surrogate.
    """
    return json.dumps(to_builtins(thing, enc_hook=str), indent=indent).encode() + b"\n"


def loads(content: bytes, kind: type[T]) -> T:
    """Decode the JSON ``content`` written by ``dumps``.

    Raises:
        ValueError: the content is no JSON, or no value of this kind.
        RecursionError: the content is nested too deeply.
    """
    return convert(json.loads(content), kind, dec_hook=_decode_path)


def _decode_path(kind: type, text: str) -> Any:
    """Decode a value of a type unknown to msgspec: a path."""
    return kind(text)
