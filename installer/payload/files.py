"""The table of files we ship, what they become on the host, and what is wrong with what stands there."""

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Final, TypeAlias, assert_never

from msgspec import Struct

from installer.errors import InstallerError, Option, Remedy
from installer.model.facts import PayloadFacts
from installer.model.files import (
    EXECUTABLE_DIRS,
    EXECUTE,
    OTHERS_WRITE,
    Artifact,
    Copy,
    Entry,
    PayloadFile,
    Symlink,
    Text,
)

CONFIG: Final = PurePosixPath(".config/nvidia-container-runtime/config.toml")

# A directory while the driver is loaded: `test` sees it without the fork that reading /proc/modules takes.
NVIDIA_MODULE: Final = PurePosixPath("/sys/module/nvidia")


class Variable(Struct, frozen=True):
    """An environment variable that a wrapper sets to ``path``, relative to the toolkit directory."""

    name: str
    path: PurePosixPath
    prepended: bool = False  # to what the variable holds, as one more entry of a search path


def real_name(name: str) -> str:
    """Return the name under which the program behind the wrapper ``name`` is installed."""
    return f"{name}.real"


_PATH: Final = Variable("PATH", PurePosixPath(), prepended=True)
_LIBRARY_PATH: Final = Variable("LD_LIBRARY_PATH", PurePosixPath(), prepended=True)
_CONFIG_PATH: Final = Variable("NVIDIA_CTK_CONFIG_FILE_PATH", CONFIG)


class Executable(Struct, frozen=True):
    """A program we ship: with ``variables`` as NAME.real behind a wrapper, without them as it is."""

    name: str
    variables: tuple[Variable, ...] = ()
    runtime: bool = False  # it gives way to the low-level runtime while the driver is not loaded


EXECUTABLES: Final = (
    Executable("nvidia-cdi-hook"),
    Executable("nvidia-container-cli", (_LIBRARY_PATH, _PATH)),
    Executable("nvidia-container-runtime", (_CONFIG_PATH, _PATH), runtime=True),
    Executable("nvidia-container-runtime-hook", (_CONFIG_PATH, _PATH)),
    Executable("nvidia-container-runtime.cdi", (_CONFIG_PATH, _PATH), runtime=True),
    Executable("nvidia-container-runtime.legacy", (_CONFIG_PATH, _PATH), runtime=True),
    Executable("nvidia-ctk", (_PATH,)),
)
PROGRAMS: Final = frozenset(
    PurePosixPath(name) for program in EXECUTABLES for name in (program.name, real_name(program.name))
)
LIBRARIES: Final = ("libnvidia-container-go.so.1", "libnvidia-container.so.1")
LINKS: Final = (Symlink(PurePosixPath("nvidia-container-toolkit"), "nvidia-container-runtime-hook"),)


# Containers whose GPUs come by CDI start the hook that a specification names; nvidia-ctk makes such.
FOR_CDI: Final = frozenset({"nvidia-cdi-hook", "nvidia-ctk"})
REQUIRED: Final = (*(executable.name for executable in EXECUTABLES), *LIBRARIES)  # what a source has to hold


def list_payload(
    artifacts: Sequence[Artifact],
    *,
    toolkit_dir: PurePosixPath,
    low_level: Sequence[str],
    config_text: str | None,
    in_place: bool = False,
) -> tuple[PayloadFile, ...]:
    """Return all files of one version, sorted by path, from artifacts that passed ``check_artifacts``.

    ``toolkit_dir`` is where the host finds the version once it is switched in; ``low_level`` are the
    runtimes ours may wrap, preferred first, at least one. Without a ``config_text`` it is for CDI alone.
    Programs that are used ``in_place`` are the host's own: links lead to them, so that an update by their
    package manager changes nothing of ours. InstallerError: no search path can name ``toolkit_dir``.
    """
    if ":" in str(toolkit_dir):
        problem = f"install into {toolkit_dir} (in PATH a colon ends a directory)"
        remedy = "choose an install-dir without a colon"
        raise InstallerError(problem, remedy=remedy, code="install-dir-unusable")
    found = {artifact.name: artifact for artifact in artifacts}
    by_cdi = config_text is None
    files: list[PayloadFile] = [] if config_text is None else [*LINKS, Text(CONFIG, config_text, 0o644)]
    for executable in (each for each in EXECUTABLES if not by_cdi or each.name in FOR_CDI):
        artifact = found[executable.name]
        files += _ship_program(executable, artifact, toolkit_dir, low_level[0], in_place=in_place)
    for soname in () if by_cdi or in_place else LIBRARIES:
        others = [found[other] for other in REQUIRED if other != soname]
        files += _ship_library(found[soname], others)
    return tuple(sorted(dict.fromkeys(files), key=attrgetter("path")))


def version_of(files: Iterable[PayloadFile]) -> str:
    """Return the name of the version that holds ``files``: equal names, equal trees.

    To stay the same until something of ours changes it must be taken from files with the config as it was
    rendered; an administrator's edits live on inside a version and do not make a new one.
    """
    # 16 hex digits: they only tell the few versions on one node apart. A copy is checked by its full digest.
    rows = json.dumps(sorted((str(file.path), *_identify(file)) for file in files))
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


def _identify(file: PayloadFile) -> tuple[str, int, str]:
    """Return the kind of a file, its mode, and what it holds."""
    match file:
        case Copy(_, _, _, digest, mode):
            return "file", mode, digest
        case Text(_, content, mode):
            return "file", mode, hashlib.sha256(content.encode()).hexdigest()
        case Symlink(_, target):
            return "link", 0, target
        case _:
            assert_never(file)


def _ship_program(
    executable: Executable, artifact: Artifact, toolkit_dir: PurePosixPath, low_level: str, *, in_place: bool
) -> list[PayloadFile]:
    # 0755 whatever the source has: engines and user-namespaced pods run it, root alone writes it,
    # and a setuid bit has no business on a program that a container engine starts.
    mode, name = 0o755, executable.name
    real = name if not executable.variables else real_name(name)
    program = (
        Symlink(PurePosixPath(real), str(artifact.own_path)) if in_place else _copy(artifact, real, mode)
    )
    if not executable.variables:
        return [program]
    script = wrapper_script(
        name,
        executable.variables,
        toolkit_dir=toolkit_dir,
        fallback=low_level if executable.runtime else None,
    )
    return [Text(PurePosixPath(name), script, mode), program]


def _ship_library(artifact: Artifact, others: Iterable[Artifact]) -> list[PayloadFile]:
    """Return a library under its own name, with the link by which programs find it."""
    soname, mode = artifact.name, artifact.mode & 0o755 | 0o444
    taken = {*map(str, PROGRAMS), *LIBRARIES, *(link.path.name for link in LINKS), CONFIG.parts[0]}
    taken |= {other.file_name for other in others if other.source != artifact.source}
    if artifact.file_name in taken:  # the source has no link, or something else that we install has its name
        return [_copy(artifact, soname, mode)]
    return [_copy(artifact, artifact.file_name, mode), Symlink(PurePosixPath(soname), artifact.file_name)]


def _copy(artifact: Artifact, name: str, mode: int) -> Copy:
    return Copy(PurePosixPath(name), artifact.source, artifact.size_bytes, artifact.digest, mode)


def wrapper_script(
    name: str,
    variables: Sequence[Variable],
    *,
    toolkit_dir: PurePosixPath,
    fallback: str | None = None,
    module: PurePosixPath = NVIDIA_MODULE,
) -> str:
    """Return the script installed as ``name``: it becomes ``name``.real with ``variables`` set.

    It speaks POSIX sh and nothing more, for a node's /bin/sh may be dash, busybox ash or bash. Nothing in it
    depends on the working directory: an engine may start a runtime in a bundle that is already gone.

    ``fallback`` makes it a runtime: without the driver's kernel module, or without ``name``.real, the
    low-level runtime of that path or bare word runs instead, so that containers that need no GPU start
    and those that run can be stopped. It answers ``features``, too, which NVIDIA's runtime would pass on
    while CRI is away (engine-facts.md#containerd-features). A bare word is looked up before our directory
    joins ``PATH``. Nothing is said on stderr: containerd reads it with the answer
    (engine-facts.md#containerd-runtime-stderr).

    The program is named by its path in ``toolkit_dir``, the link that switches versions, and not in the
    directory of one version: a shell that began to read the wrapper of the old version finds the program
    of the new one instead of none, even when the old version is gone by then. It also keeps the text free
    of the version's name, which is a digest over this text.
    """
    real = shlex.quote(str(toolkit_dir / real_name(name)))
    lines = ["#!/bin/sh"]
    if fallback is not None:
        lines.append(
            f'[ "$1" != features ] && [ -d {shlex.quote(str(module))} ] && [ -x {real} ]'
            f' || exec {shlex.quote(fallback)} "$@"'
        )
    for variable in variables:
        path = shlex.quote(str(toolkit_dir / variable.path))
        # An empty entry of a search path is the working directory, so none may be left where nothing was.
        rest = f'"${{{variable.name}:+:${variable.name}}}"' if variable.prepended else ""
        lines.append(f"export {variable.name}={path}{rest}")
    lines.append(f'exec {real} "$@"')
    return "\n".join(lines) + "\n"


SOURCE: Final = Option("toolkit-source")

# Where distributions put libraries, relative to the root of the toolkit's source.
_LIBRARY_DIRS: Final = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")

# e_machine of the ELF header (elf.h), by what uname(2) calls the node.
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}


def search_paths(name: str) -> tuple[PurePosixPath, ...]:
    """Return where a source may hold the required ``name``, relative to its root, preferred first."""
    directories = _LIBRARY_DIRS if name in LIBRARIES else EXECUTABLE_DIRS
    return tuple(PurePosixPath(directory, name) for directory in directories)


def check_artifacts(
    facts: PayloadFacts, source_root: PurePosixPath, *, by_cdi: bool = False
) -> Iterator[InstallerError]:
    """Yield why a source cannot be used on a node: it lacks files, or one is unusable."""
    found = {artifact.name for artifact in facts.artifacts}
    required = [name for name in REQUIRED if not by_cdi or name in FOR_CDI]
    missing = [name for name in required if name not in found]
    if facts.machine not in _MACHINES:
        yield _refuse(
            f"install the toolkit on a node of architecture {facts.machine}",
            f"NVIDIA builds it for {_join(sorted(_MACHINES))} only",
        )
    elif not found:
        where = ", which is / where apt or dnf has installed it"
        yield _refuse(
            f"find an NVIDIA container toolkit under {source_root}", "name its root with ", SOURCE, where
        )
    elif missing:
        whole = " the root of a complete NVIDIA container toolkit"
        yield _refuse(f"find {_join(missing)} under {source_root}", "make ", SOURCE, whole)
    else:
        for artifact in facts.artifacts:
            if artifact.name in required:
                yield from _check_artifact(artifact, facts)


def _refuse(problem: str, *remedy: str | Option) -> InstallerError:
    return InstallerError(problem, remedy=Remedy(*remedy), code="payload-unusable")


def _check_artifact(artifact: Artifact, facts: PayloadFacts) -> Iterator[InstallerError]:
    """Yield why the node cannot run a file: neither its ELF nor a script."""
    if artifact.interpreter is not None and artifact.name not in LIBRARIES:
        if artifact.interpreter in facts.absent_interpreters:
            script = f"is a script for {artifact.interpreter}, which the host lacks"
            yield _refuse(
                f"install {artifact.name} ({artifact.source} {script})",
                f"install {artifact.interpreter} there, or choose another ",
                SOURCE,
            )
        return
    # 64 bits, little-endian, for this machine (elf.h).
    wanted = b"\x7fELF\x02\x01", _MACHINES[facts.machine].to_bytes(2, "little")
    if (artifact.head[:6], artifact.head[18:20]) != wanted:
        flaw = f"is neither a program for {facts.machine} nor a script"
        built = f" an NVIDIA container toolkit for {facts.machine}"
        yield _refuse(f"install {artifact.name} ({artifact.source} {flaw})", "make ", SOURCE, built)


def _join(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


FILE: Final = "sha256:"
LINK: Final = "link:"
NOT_OWNED: Final = "owned by another user than root"
WRITABLE: Final = "writable by others than root"
SPECIAL_BITS: Final = 0o7000
ALL_READ: Final = 0o444
# By path within the version: sha256:DIGEST, or link:TARGET.
Manifest: TypeAlias = Mapping[str, str]


def make_manifest(files: Iterable[PayloadFile]) -> dict[str, str]:
    """Return what a version is to be; config.toml is left out, for administrators edit it."""
    identities = ((file, *_identify(file)) for file in files if file.path != CONFIG)
    return {
        str(file.path): f"{LINK if kind == 'link' else FILE}{content}"
        for file, kind, _, content in identities
    }


def list_programs_in_place(wanted: Manifest) -> tuple[PurePosixPath, ...]:
    """Return the programs of the host's that a version leads to; () for one that has its own."""
    return tuple(
        PurePosixPath(target)
        for identity in wanted.values()
        if identity.startswith(LINK) and (target := identity.removeprefix(LINK)).startswith("/")
    )


def list_damage(
    wanted: Manifest, found: Mapping[PurePosixPath, Entry], digests: Mapping[PurePosixPath, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield each path of a version that is not as installed, and why; without ``digests`` not of content."""
    for name, identity in wanted.items():
        path = PurePosixPath(name)
        there = found.get(path)
        if there is None:
            yield name, "missing"
        elif there.link or there.directory or not identity.startswith(FILE):
            if there.directory or identity != f"{LINK}{there.link}":
                yield name, "replaced"
        elif flaw := access_flaw(path, there):
            yield name, flaw
        elif digests is not None and identity != f"{FILE}{digests.get(path)}":
            yield name, "changed"
    for path, entry in sorted(found.items()):
        if str(path) in wanted:
            continue
        if entry.directory or path == CONFIG:
            flaw = access_flaw(path, entry)
        else:  # this directory comes first in the PATH of our programs, which root runs
            flaw = "not ours" if path.parent == PurePosixPath() else ""
        if flaw:
            yield str(path), flaw


def access_flaw(path: PurePosixPath, entry: Entry) -> str:
    """Return who may do too much or too little with a path of a version; "" where it is right."""
    if not entry.owned:
        return NOT_OWNED
    if entry.mode & OTHERS_WRITE:
        return WRITABLE
    if not entry.directory and path != CONFIG:
        if entry.mode & SPECIAL_BITS:
            return "setuid, setgid or sticky"
        if entry.capabilities:
            return "given capabilities"
    if (path in PROGRAMS or entry.directory) and EXECUTE & ~entry.mode:
        return "not accessible to everybody" if entry.directory else "not executable by everybody"
    # An administrator may keep config.toml from being read.
    return "not readable by everybody" if ALL_READ & ~entry.mode and path != CONFIG else ""


Version = tuple[int, ...]

# NVIDIA's security bulletins of the container toolkit.
FIXED_IN: Final[tuple[tuple[Version, tuple[str, ...]], ...]] = (
    ((1, 17, 8), ("CVE-2025-23266", "CVE-2025-23267")),
    ((1, 17, 4), ("CVE-2025-23359",)),
    ((1, 17, 3), ("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137")),
    ((1, 17, 0), ("CVE-2024-0134",)),
    ((1, 16, 2), ("CVE-2024-0132", "CVE-2024-0133")),
)


def advise(version: Version | None) -> tuple[str, ...]:
    """Return a sentence where a toolkit of this version has known holes; none where no hole is known."""
    if version is None:
        return ()
    holes = [name for fixed, names in FIXED_IN if version < fixed for name in names]
    if not holes:
        return ()
    text = ".".join(map(str, version))
    safe = ".".join(map(str, max(fixed for fixed, _ in FIXED_IN)))
    return (f"the toolkit {text} has known holes ({', '.join(holes)}): install {safe} or later",)
