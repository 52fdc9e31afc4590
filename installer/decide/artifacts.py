"""What a toolkit's source must hold, by the names we ship, and what of it cannot run on a node."""

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.toolkit import LIBRARIES, WHOLE, Artifact, Shipped

SOURCE: Final = Option("toolkit-source")

# Where distributions put programs and libraries, relative to the root of the toolkit's source.
_EXECUTABLE_DIRS: Final = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_LIBRARY_DIRS: Final = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")

# e_machine of the ELF header (elf.h), by what uname(2) calls the node.
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
_ELF_BYTES: Final = 20


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
    shipped: Shipped = WHOLE,
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
    missing = [name for name in shipped.required if name not in found]
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
    for artifact in (each for each in artifacts if each.name in shipped.required):
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
