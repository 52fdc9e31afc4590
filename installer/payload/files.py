"""The table of files we ship, their form on the host, and the damage of installed files."""

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
    NOTES,
    OTHERS_WRITE,
    Artifact,
    Carried,
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
    """An environment variable of a wrapper, set to ``path``, relative to the toolkit directory."""

    name: str
    path: PurePosixPath
    prepended: bool = False  # to what the variable holds, as one more entry of a search path


def real_name(name: str) -> str:
    """Return the installed name of the program behind the wrapper ``name``."""
    return f"{name}.real"


_PATH: Final = Variable("PATH", PurePosixPath(), prepended=True)
_LIBRARY_PATH: Final = Variable("LD_LIBRARY_PATH", PurePosixPath(), prepended=True)
_CONFIG_PATH: Final = Variable("NVIDIA_CTK_CONFIG_FILE_PATH", CONFIG)


class Executable(Struct, frozen=True):
    """A program we ship: with ``variables`` as NAME.real behind a wrapper, else unwrapped."""

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
_WRAPPER_NAMES: Final = [program.name for program in EXECUTABLES]
_REAL_NAMES: Final = [real_name(name) for name in _WRAPPER_NAMES]
PROGRAMS: Final = frozenset(PurePosixPath(name) for name in (*_WRAPPER_NAMES, *_REAL_NAMES))
LIBRARIES: Final = ("libnvidia-container-go.so.1", "libnvidia-container.so.1")
LINKS: Final = (Symlink(PurePosixPath("nvidia-container-toolkit"), "nvidia-container-runtime-hook"),)


# Containers with GPUs by CDI start the hook that a specification names; nvidia-ctk generates specifications.
FOR_CDI: Final = frozenset({"nvidia-cdi-hook", "nvidia-ctk"})
REQUIRED: Final = (*_WRAPPER_NAMES, *LIBRARIES)  # every source must have these files


def list_payload(
    artifacts: Sequence[Artifact],
    *,
    toolkit_dir: PurePosixPath,
    low_level: Sequence[str],
    config_text: str | None,
    in_place: bool = False,
) -> tuple[PayloadFile, ...]:
    """Return all files of a version, sorted by path, from artifacts checked by ``check_artifacts``.

    Args:
        artifacts: the files of the source.
        toolkit_dir: the host's path of the version after the switch.
        low_level: the runtimes to wrap, preferred first; not empty.
        config_text: the text of config.toml; None for a version that serves CDI only.
        in_place: the programs are the host's own and are not copied. Links lead to them, so that an update by
            the host's package manager changes nothing of ours.

    Raises:
        InstallerError: no search path can name ``toolkit_dir``.
    """
    if ":" in str(toolkit_dir):
        problem = f"install into {toolkit_dir} (in PATH a colon ends a directory)"
        remedy = "choose an install-dir without a colon"
        raise InstallerError(problem, remedy=remedy, code="install-dir-unusable")
    found = {artifact.name: artifact for artifact in artifacts}
    files: list[PayloadFile] = []
    by_cdi = config_text is None
    if config_text is not None:
        files += LINKS
        files.append(Text(CONFIG, config_text, 0o644))
    for executable in EXECUTABLES:
        if by_cdi and executable.name not in FOR_CDI:
            continue
        artifact = found[executable.name]
        files += _ship_program(executable, artifact, toolkit_dir, low_level[0], in_place=in_place)
    if not by_cdi and not in_place:
        for soname in LIBRARIES:
            others = [found[other] for other in REQUIRED if other != soname]
            files += _ship_library(found[soname], others)
    return tuple(sorted(dict.fromkeys(files), key=attrgetter("path")))


def version_of(files: Iterable[PayloadFile]) -> str:
    """Return the name of the version with these ``files``: equal names, equal trees.

    ``files`` must have the rendered config.toml: an administrator's edits stay inside a version and do
    not make a new version.
    """
    # 16 hex digits distinguish the few versions on one node. A copy is checked by its full digest.
    identities = []
    for file in files:
        identities.append((str(file.path), *_identify(file)))
    rows = json.dumps(sorted(identities))
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


def _identify(file: PayloadFile) -> tuple[str, int, str]:
    """Return the kind, the mode, and the digest or link target of a file."""
    match file:
        case Copy(_, _, _, digest, mode):
            return "file", mode, digest
        case Text(_, content, mode):
            return "file", mode, hashlib.sha256(content.encode()).hexdigest()
        case Symlink(_, target):
            return "link", 0, target
        case Carried(_, _, _, target):  # has no part in a version's name: see ``make_manifest``
            return CARRIED, 0, target
        case _:
            assert_never(file)


def _ship_program(
    executable: Executable, artifact: Artifact, toolkit_dir: PurePosixPath, low_level: str, *, in_place: bool
) -> list[PayloadFile]:
    # 0755 whatever mode the source has: engines and user-namespaced pods run the program, only root may
    # write it, and a container engine must never start a setuid program.
    mode = 0o755
    has_wrapper = bool(executable.variables)
    installed_name = real_name(executable.name) if has_wrapper else executable.name
    program: PayloadFile
    if in_place:
        program = Symlink(PurePosixPath(installed_name), str(artifact.own_path))
    else:
        program = _copy(artifact, installed_name, mode)
    if not has_wrapper:
        return [program]
    script = wrapper_script(
        executable.name,
        executable.variables,
        toolkit_dir=toolkit_dir,
        fallback=low_level if executable.runtime else None,
    )
    return [Text(PurePosixPath(executable.name), script, mode), program]


def _ship_library(artifact: Artifact, others: Iterable[Artifact]) -> list[PayloadFile]:
    """Return a library under the library's own name, with the link for programs."""
    soname = artifact.name
    mode = artifact.mode & 0o755 | 0o444
    taken = {str(path) for path in PROGRAMS}
    taken.update(LIBRARIES)
    taken.update(link.path.name for link in LINKS)
    taken.add(CONFIG.parts[0])
    taken.update(other.file_name for other in others if other.source != artifact.source)
    if artifact.file_name in taken:  # the source has no link, or another installed file has the name
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
    """Return the script installed as ``name``: the script starts ``name``.real with ``variables`` set.

    The script uses POSIX sh only, because a node's /bin/sh may be dash, busybox ash or bash. No line of the
    script depends on the working directory: an engine may start a runtime in a bundle that is already gone.

    ``fallback`` is the low-level runtime, a path or a bare word. With a fallback the script is a runtime: the
    fallback runs instead of the program while the driver's kernel module is not loaded or ``name``.real is
    missing. Containers without GPUs then start, and running containers can be stopped. The fallback also
    answers ``features``, because NVIDIA's runtime would pass the question on while CRI is away
    (engine-facts.md#containerd-features). The shell resolves a bare word before our directory joins ``PATH``.
    The script writes nothing to stderr: containerd reads stderr with the answer
    (engine-facts.md#containerd-runtime-stderr).

    The script names the program by its path in ``toolkit_dir``, the link that switches versions, and not in
    the directory of one version: a shell that began to read the wrapper of the old version finds the program
    of the new version, even when the old version is gone. The text is also free of the version's name, which
    is a digest over this text.
    """
    real = shlex.quote(str(toolkit_dir / real_name(name)))
    lines = ["#!/bin/sh"]
    if fallback is not None:
        lines.append(
            f'[ "$1" != features ] && [ -d {shlex.quote(str(module))} ] && [ -x {real} ]'
            f' || exec {shlex.quote(fallback)} "$@"'
        )
    for variable in variables:
        value = shlex.quote(str(toolkit_dir / variable.path))
        if variable.prepended:
            # Without a former value there must be no colon: an empty entry of a search path is the working
            # directory.
            value += f'"${{{variable.name}:+:${variable.name}}}"'
        lines.append(f"export {variable.name}={value}")
    lines.append(f'exec {real} "$@"')
    return "\n".join(lines) + "\n"


SOURCE: Final = Option("toolkit-source")

# Where distributions put libraries, relative to the root of the toolkit's source.
_LIBRARY_DIRS: Final = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")

# e_machine of the ELF header (elf.h), by what uname(2) calls the node.
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
# The architecture in the names of NVIDIA's packages for Debian, which images/fetch-payload takes.
_PACKAGED_FOR: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def search_paths(name: str) -> tuple[PurePosixPath, ...]:
    """Return the possible paths of the required ``name`` below a source's root, preferred first."""
    directories = _LIBRARY_DIRS if name in LIBRARIES else EXECUTABLE_DIRS
    return tuple(PurePosixPath(directory, name) for directory in directories)


def check_artifacts(
    facts: PayloadFacts, source_root: PurePosixPath, *, by_cdi: bool = False, in_place: bool = False
) -> Iterator[InstallerError]:
    """Yield why a node cannot use a source: files are missing or unusable."""
    found = {artifact.name for artifact in facts.artifacts}
    required = [name for name in REQUIRED if not by_cdi or name in FOR_CDI]
    missing = [name for name in required if name not in found]
    if facts.machine not in _MACHINES:
        yield _refuse(
            f"install the toolkit on a node of architecture {facts.machine}",
            f"NVIDIA builds it for {_join(sorted(_MACHINES))} only",
        )
    elif missing and facts.complete_root is not None:
        what = _join(missing) if found else "an NVIDIA container toolkit"
        right = Option("toolkit-source", str(facts.complete_root))
        yield _refuse(f"find {what} under {source_root}", "use ", right)
    elif not found and in_place:
        package = "install NVIDIA's package nvidia-container-toolkit there"
        fetch = f"images/fetch-payload DIRECTORY {_PACKAGED_FOR[facts.machine]}"
        yield _refuse(
            f"find an NVIDIA container toolkit under {source_root}",
            f"{package}, or fetch its files ({fetch}) and use ",
            Option("toolkit-source", "DIRECTORY/deb"),
        )
    elif not found:
        flaw = f" ({facts.source_flaw})" if facts.source_flaw else ""
        where = ", which is / if apt or dnf installed it"
        yield _refuse(
            f"find an NVIDIA container toolkit under {source_root}{flaw}",
            "name its root with ",
            SOURCE,
            where,
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
    """Yield the reasons why the node cannot run a file, an ELF program or a script."""
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
    machine = _MACHINES[facts.machine].to_bytes(2, "little")
    if artifact.head[:6] != b"\x7fELF\x02\x01" or artifact.head[18:20] != machine:
        flaw = f"is neither a program for {facts.machine} nor a script"
        built = f" an NVIDIA container toolkit for {facts.machine}"
        yield _refuse(f"install {artifact.name} ({artifact.source} {flaw})", "make ", SOURCE, built)


def _join(names: Sequence[str]) -> str:
    """Return names as a list in a sentence: "a, b and c"."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


FILE: Final = "sha256:"
LINK: Final = "link:"
CARRIED: Final = "carried"
NOT_OWNED: Final = "owned by another user than root"
WRITABLE: Final = "writable by others than root"
SPECIAL_BITS: Final = 0o7000
ALL_READ: Final = 0o444
# By path within the version: sha256:DIGEST, link:TARGET, or CARRIED for an owner's file.
Manifest: TypeAlias = Mapping[str, str]


def make_manifest(files: Iterable[PayloadFile]) -> dict[str, str]:
    """Return the manifest of a version, without config.toml, which administrators edit."""
    manifest = {}
    for file in files:
        if file.path == CONFIG:
            continue
        if isinstance(file, Carried):
            manifest[str(file.path)] = CARRIED
            continue
        kind, _, content = _identify(file)
        prefix = LINK if kind == "link" else FILE
        manifest[str(file.path)] = f"{prefix}{content}"
    return manifest


def list_carried(wanted: Manifest) -> list[str]:
    """List the owner's files in a version."""
    return [name for name, identity in wanted.items() if identity == CARRIED]


def list_foreign(wanted: Manifest, found: Mapping[PurePosixPath, Entry]) -> Iterator[PurePosixPath]:
    """Yield the files of owners in a version: those beside its manifest, and those carried over with it.

    Args:
        wanted: the manifest of the version.
        found: what is in the version, by the paths below it.
    """
    ours = {*wanted, str(CONFIG), str(NOTES)}.difference(list_carried(wanted))
    for path, entry in sorted(found.items()):
        if not entry.directory and str(path) not in ours:
            yield path


def list_programs_in_place(wanted: Manifest) -> tuple[PurePosixPath, ...]:
    """Return the host's programs behind the links of a version; empty for a version with copies."""
    absolute_link = f"{LINK}/"
    programs = []
    for identity in wanted.values():
        if identity.startswith(absolute_link):
            programs.append(PurePosixPath(identity.removeprefix(LINK)))
    return tuple(programs)


def list_damage(
    wanted: Manifest, found: Mapping[PurePosixPath, Entry], digests: Mapping[PurePosixPath, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield each damaged path of a version with the flaw; content is compared only with ``digests``."""
    for name, identity in wanted.items():
        if identity == CARRIED:  # the owner may change it
            continue
        flaw = _find_flaw(PurePosixPath(name), identity, found, digests)
        if flaw:
            yield name, flaw
    of_owners = _list_owners_directories(wanted)
    for path, entry in sorted(found.items()):
        if str(path) in wanted or path in of_owners:
            continue
        flaw = ""
        if entry.directory or path == CONFIG:
            flaw = access_flaw(path, entry)
        elif path.parent == PurePosixPath() and not entry.owned:
            # The version's directory comes first in the PATH of our programs, which root runs.
            flaw = NOT_OWNED
        elif path.parent == PurePosixPath() and not entry.link and entry.mode & OTHERS_WRITE:
            flaw = WRITABLE
        if flaw:
            yield str(path), flaw


def _list_owners_directories(wanted: Manifest) -> set[PurePosixPath]:
    """Return the directories of a version with only an owner's files: they keep their owner and mode."""
    owners: set[PurePosixPath] = set()
    ours = {PurePosixPath(), *CONFIG.parents}
    for name, identity in wanted.items():
        parents = PurePosixPath(name).parents
        if identity == CARRIED:
            owners.update(parents)
        else:
            ours.update(parents)
    return owners - ours


def _find_flaw(
    path: PurePosixPath,
    identity: str,
    found: Mapping[PurePosixPath, Entry],
    digests: Mapping[PurePosixPath, str] | None,
) -> str:
    """Return why a path of a version is not as its ``identity`` in the manifest says; "" if it is."""
    entry = found.get(path)
    if entry is None:
        return "missing"
    if entry.directory or entry.link or not identity.startswith(FILE):
        is_right_link = not entry.directory and identity == f"{LINK}{entry.link}"
        return "" if is_right_link else "replaced"
    flaw = access_flaw(path, entry)
    if flaw:
        return flaw
    if digests is not None and identity != f"{FILE}{digests.get(path)}":
        return "changed"
    return ""


def access_flaw(path: PurePosixPath, entry: Entry) -> str:
    """Return why the owner or mode of a version's path is wrong; "" if both are right."""
    if not entry.owned:
        return NOT_OWNED
    if entry.mode & OTHERS_WRITE:
        return WRITABLE
    if not entry.directory and path != CONFIG:
        if entry.mode & SPECIAL_BITS:
            return "setuid, setgid or sticky"
        if entry.capabilities:
            return "given capabilities"
    executable = entry.mode & EXECUTE == EXECUTE
    if entry.directory and not executable:
        return "not accessible to everybody"
    if path in PROGRAMS and not executable:
        return "not executable by everybody"
    readable = entry.mode & ALL_READ == ALL_READ
    # An administrator may make config.toml unreadable for other users.
    if path != CONFIG and not readable:
        return "not readable by everybody"
    return ""


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
    """Return a sentence for a toolkit version with known holes; empty if no hole is known."""
    if version is None:
        return ()
    holes: list[str] = []
    for fixed, names in FIXED_IN:
        if version < fixed:
            holes += names
    if not holes:
        return ()
    text = ".".join(map(str, version))
    fixed_versions = [fixed for fixed, _ in FIXED_IN]
    safe = ".".join(map(str, max(fixed_versions)))
    return (f"the toolkit {text} has known holes ({', '.join(holes)}): install {safe} or later",)
