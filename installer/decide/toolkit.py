"""The table of files we ship: what a toolkit's source must hold, and what that becomes on the host."""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Final, TypeAlias, assert_never

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.wrapper import Variable, real_name, wrapper_script

SOURCE: Final = Option("toolkit-source")
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
    """A relative link to a neighbour."""

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

REQUIRED: Final = (*(executable.name for executable in EXECUTABLES), *LIBRARIES)

# Where distributions put programs and libraries, relative to the root of the toolkit's source.
_EXECUTABLE_DIRS: Final = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_LIBRARY_DIRS: Final = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")

# e_machine of the ELF header (elf.h), by what uname(2) calls the node.
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
_ELF_BYTES: Final = 20
HEAD_BYTES: Final = 256  # as much as the kernel reads of a script's first line (BINPRM_BUF_SIZE)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What was found in the toolkit's source for the required ``name``.

    ``source`` is the path as the process sees it and ``file_name`` its base name with symlinks
    resolved, such as libnvidia-container.so.1.17.4 for the name libnvidia-container.so.1. ``digest`` is
    the content's sha256 in hex, ``head`` its first ``HEAD_BYTES``, where the ELF header is, or the line
    that names a script's interpreter.
    """

    name: str
    file_name: str
    source: PurePosixPath
    size_bytes: int
    mode: int
    digest: str
    head: bytes

    @property
    def interpreter(self) -> PurePosixPath | None:
        """The program that runs this script; None where it is no script, or names none by its whole path."""
        line = self.head.partition(b"\n")[0]
        words = line.removeprefix(b"#!").split() if line.startswith(b"#!") else []
        path = PurePosixPath(words[0].decode(errors="surrogateescape")) if words else PurePosixPath()
        return path if path.is_absolute() else None


def search_paths(name: str) -> tuple[PurePosixPath, ...]:
    """Return where a source may hold the required ``name``, relative to its root, preferred first.

    The first regular file counts; an executable has to have an execute bit as well.
    """
    directories = _LIBRARY_DIRS if name in LIBRARIES else _EXECUTABLE_DIRS
    return tuple(PurePosixPath(directory, name) for directory in directories)


def check_artifacts(
    artifacts: Sequence[Artifact],
    *,
    source_root: PurePosixPath,
    machine: str,
    absent: Collection[PurePosixPath] = (),
) -> None:
    """Refuse a source that lacks a file or was built for something else than ``machine``, as uname has it.

    ``absent`` are the interpreters of scripts that the host lacks.

    Raises:
        InstallerError: names every file that is missing, or the first that cannot run on this node.
    """
    if machine not in _MACHINES:
        raise InstallerError(
            f"install the toolkit on a node of architecture {machine}",
            remedy=f"NVIDIA builds it for {_listed(sorted(_MACHINES))} only",
            code="payload-unusable",
        )
    found = {artifact.name for artifact in artifacts}
    missing = [name for name in REQUIRED if name not in found]
    if not found:
        raise InstallerError(
            f"find an NVIDIA container toolkit under {source_root}",
            remedy=Remedy("name its root with ", SOURCE, ", which is / where apt or dnf has installed it"),
            code="payload-unusable",
        )
    if missing:
        raise InstallerError(
            f"find {_listed(missing)} under {source_root}",
            remedy=Remedy("make ", SOURCE, " the root of a complete NVIDIA container toolkit"),
            code="payload-unusable",
        )
    for artifact in artifacts:
        check_artifact(artifact, machine=machine, absent=absent)


def check_artifact(artifact: Artifact, *, machine: str, absent: Collection[PurePosixPath] = ()) -> None:
    """Refuse a file that a node of the known ``machine`` cannot run: neither its ELF nor a script.

    Raises:
        InstallerError: says what the file is instead.
    """
    if artifact.interpreter is not None and artifact.name not in LIBRARIES:
        if artifact.interpreter in absent:
            raise InstallerError(
                f"install {artifact.name} ({artifact.source} is a script for {artifact.interpreter}, "
                "which the host lacks)",
                remedy=Remedy(f"install {artifact.interpreter} there, or choose another ", SOURCE),
                code="payload-unusable",
            )
        return
    flaw = _flaw(artifact.head, machine)
    if flaw is not None:
        raise InstallerError(
            f"install {artifact.name} ({artifact.source} {flaw})",
            remedy=Remedy("make ", SOURCE, f" an NVIDIA container toolkit for {machine}"),
            code="payload-unusable",
        )


def payload(
    artifacts: Sequence[Artifact],
    *,
    toolkit_dir: PurePosixPath,
    low_level: Sequence[str],
    config_text: str,
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
    files: list[PayloadFile] = [Text(CONFIG, config_text, 0o644), *LINKS]
    for executable in EXECUTABLES:
        files += _installed(executable, found[executable.name], toolkit_dir, low_level[0])
    for soname in LIBRARIES:
        others = [found[other] for other in REQUIRED if other != soname]
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
    executable: Executable, artifact: Artifact, toolkit_dir: PurePosixPath, low_level: str
) -> list[PayloadFile]:
    # 0755 whatever the source has: engines and user-namespaced pods run it, nobody else writes it,
    # and a setuid bit has no business on a program that a container engine starts.
    mode, name = 0o755, executable.name
    if not executable.variables:
        return [_copy(artifact, name, mode)]
    script = wrapper_script(
        name,
        executable.variables,
        toolkit_dir=toolkit_dir,
        fallback=low_level if executable.runtime else None,
    )
    return [Text(PurePosixPath(name), script, mode), _copy(artifact, real_name(name), mode)]


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


def _flaw(head: bytes, machine: str) -> str | None:
    if len(head) < _ELF_BYTES or not head.startswith(b"\x7fELF"):
        return "is neither an ELF file nor a script"
    if (head[4], head[5]) != (2, 1):  # EI_CLASS, EI_DATA
        return "is not a 64-bit little-endian ELF file"
    built_for = int.from_bytes(head[18:20], "little")
    if built_for == _MACHINES[machine]:
        return None
    names = {number: name for name, number in _MACHINES.items()}
    return f"is built for {names.get(built_for, f'ELF machine {built_for}')}, the node is {machine}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
