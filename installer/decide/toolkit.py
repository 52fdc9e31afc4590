"""The table of files we ship, and what they become on the host."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Final, TypeAlias, assert_never

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError
from installer.decide.wrapper import Variable, real_name, wrapper_script

CONFIG: Final = PurePosixPath(".config/nvidia-container-runtime/config.toml")

_PATH: Final = Variable("PATH", PurePosixPath(), prepended=True)
_LIBRARY_PATH: Final = Variable("LD_LIBRARY_PATH", PurePosixPath(), prepended=True)
_CONFIG_PATH: Final = Variable("NVIDIA_CTK_CONFIG_FILE_PATH", CONFIG)


@dataclass(frozen=True, slots=True)
class Executable:
    """A program we ship: with ``variables`` as NAME.real behind a wrapper, without them as it is.

    A ``runtime`` gives way to the low-level runtime while the driver is not loaded.
    """

    name: str
    variables: tuple[Variable, ...] = ()
    runtime: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of the source; ``source`` is the path as the process sees it, ``digest`` its sha256 in hex."""

    path: PurePosixPath
    source: PurePosixPath
    size_bytes: int
    digest: str
    mode: int


@dataclass(frozen=True, slots=True)
class Text:
    """A file that we write ourselves."""

    path: PurePosixPath
    content: str
    mode: int


@dataclass(frozen=True, slots=True)
class Symlink:
    """A relative link to a neighbour, or one to a program of the host's."""

    path: PurePosixPath
    target: str


# What a version directory holds, named by paths relative to it.
PayloadFile: TypeAlias = Copy | Text | Symlink

EXECUTABLES: Final = (
    Executable("nvidia-cdi-hook"),
    Executable("nvidia-container-cli", (_LIBRARY_PATH, _PATH)),
    Executable("nvidia-container-runtime", (_CONFIG_PATH, _PATH), runtime=True),
    Executable("nvidia-container-runtime-hook", (_CONFIG_PATH, _PATH)),
    Executable("nvidia-container-runtime.cdi", (_CONFIG_PATH, _PATH), runtime=True),
    Executable("nvidia-container-runtime.legacy", (_CONFIG_PATH, _PATH), runtime=True),
    Executable("nvidia-ctk", (_PATH,)),
)
LIBRARIES: Final = ("libnvidia-container-go.so.1", "libnvidia-container.so.1")
LINKS: Final = (Symlink(PurePosixPath("nvidia-container-toolkit"), "nvidia-container-runtime-hook"),)


@dataclass(frozen=True, slots=True)
class Shipped:
    """As much of the table as is installed; without a runtime nobody reads a ``config``.

    Programs that are used ``in_place`` are the host's own: links lead to them, so that an update by their
    package manager changes nothing of ours.
    """

    executables: tuple[Executable, ...]
    libraries: tuple[str, ...] = ()
    links: tuple[Symlink, ...] = ()
    config: bool = False
    in_place: bool = False

    @property
    def required(self) -> tuple[str, ...]:
        """What a source has to hold for it."""
        return (*(executable.name for executable in self.executables), *self.libraries)


WHOLE: Final = Shipped(EXECUTABLES, LIBRARIES, LINKS, config=True)
# Containers whose GPUs come by CDI start the hook that a specification names; nvidia-ctk makes such.
FOR_CDI: Final = Shipped(
    tuple(each for each in EXECUTABLES if each.name in {"nvidia-cdi-hook", "nvidia-ctk"})
)
REQUIRED: Final = WHOLE.required
HEAD_BYTES: Final = 256  # as much as the kernel reads of a script's first line (BINPRM_BUF_SIZE)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What was found in the toolkit's source for the required ``name``.

    ``source`` is the path as the process sees it and ``file_name`` its base name with symlinks
    resolved, such as libnvidia-container.so.1.17.4 for the name libnvidia-container.so.1. ``digest`` is
    the content's sha256 in hex, ``head`` its first ``HEAD_BYTES``, where the ELF header is, or the line
    that names a script's interpreter. ``place`` is the path below the source's root by which it was found.
    """

    name: str
    file_name: str
    source: PurePosixPath
    size_bytes: int
    mode: int
    digest: str
    head: bytes
    place: PurePosixPath = PurePosixPath()

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


def payload(
    artifacts: Sequence[Artifact],
    *,
    toolkit_dir: PurePosixPath,
    low_level: Sequence[str],
    config_text: str,
    shipped: Shipped = WHOLE,
) -> tuple[PayloadFile, ...]:
    """Return all files of one version, sorted by path, from artifacts that passed ``check_artifacts``.

    ``toolkit_dir`` is where the host finds the version once it is switched in; ``low_level`` are the
    runtimes ours may wrap, preferred first, at least one.

    Raises:
        InstallerError: no search path can name ``toolkit_dir``.
    """
    if ":" in str(toolkit_dir):
        raise InstallerError(
            f"install into {toolkit_dir} (in PATH a colon ends a directory)",
            remedy="choose an install-dir without a colon",
            code="install-dir-unusable",
        )
    found = {artifact.name: artifact for artifact in artifacts}
    files: list[PayloadFile] = [
        *([Text(CONFIG, config_text, 0o644)] if shipped.config else ()),
        *shipped.links,
    ]
    for executable in shipped.executables:
        files += _installed(executable, found[executable.name], toolkit_dir, low_level[0], shipped)
    for soname in () if shipped.in_place else shipped.libraries:
        others = [found[other] for other in shipped.required if other != soname]
        files += _library(found[soname], others)
    return tuple(sorted(dict.fromkeys(files), key=attrgetter("path")))


def version_of(files: Iterable[PayloadFile]) -> str:
    """Return the name of the version that holds ``files``: equal names, equal trees.

    To stay the same until something of ours changes it must be taken from files with the config as it was
    rendered; an administrator's edits live on inside a version and do not make a new one.

    16 hex digits of sha256: they only tell the few versions on one node apart, and keep paths readable.
    What was copied is checked against its full digest.
    """
    rows = json.dumps(sorted(_identity(file) for file in files))
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


def text_digest(file: Text) -> str:
    """Return the sha256 of a file that we write ourselves, in hex."""
    return hashlib.sha256(file.content.encode()).hexdigest()


def _identity(file: PayloadFile) -> tuple[str, str, int, str]:
    match file:
        case Copy(path, _, _, digest, mode):
            return str(path), "file", mode, digest
        case Text(path, _, mode):
            return str(path), "file", mode, text_digest(file)
        case Symlink(path, target):
            return str(path), "link", 0, target
        case _:
            assert_never(file)


def _installed(
    executable: Executable, artifact: Artifact, toolkit_dir: PurePosixPath, low_level: str, shipped: Shipped
) -> list[PayloadFile]:
    # 0755 whatever the source has: engines and user-namespaced pods run it, nobody else writes it,
    # and a setuid bit has no business on a program that a container engine starts.
    mode, name = 0o755, executable.name
    put = _link if shipped.in_place else partial(_copy, mode=mode)
    if not executable.variables:
        return [put(artifact, name)]
    script = wrapper_script(
        name,
        executable.variables,
        toolkit_dir=toolkit_dir,
        fallback=low_level if executable.runtime else None,
    )
    return [Text(PurePosixPath(name), script, mode), put(artifact, real_name(name))]


def _library(artifact: Artifact, others: Iterable[Artifact]) -> list[PayloadFile]:
    """Return a library under its own name, with the link by which programs find it.

    It is a plain file where the source has no link, or where its name is that of something else we install.
    """
    soname, mode = artifact.name, artifact.mode & 0o755 | 0o444
    taken = {name for program in EXECUTABLES for name in (program.name, real_name(program.name))}
    taken |= {*LIBRARIES, *(link.path.name for link in LINKS), CONFIG.parts[0]}
    taken |= {other.file_name for other in others if other.source != artifact.source}
    if artifact.file_name in taken:
        return [_copy(artifact, soname, mode)]
    return [_copy(artifact, artifact.file_name, mode), Symlink(PurePosixPath(soname), artifact.file_name)]


def _copy(artifact: Artifact, name: str, mode: int) -> Copy:
    return Copy(PurePosixPath(name), artifact.source, artifact.size_bytes, artifact.digest, mode)


def _link(artifact: Artifact, name: str) -> Symlink:
    return Symlink(PurePosixPath(name), str(artifact.own_path))
