"""The files of the toolkit's source, and the installed toolkit: its owner, and who may write there."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

from msgspec.structs import replace

from installer.errors import InstallerError, Option, Remedy
from installer.host.events import log
from installer.host.files import Host, entries, entry_of, restrict
from installer.host.inodes import resolve_local, translated
from installer.host.kernel import trusted_uids
from installer.host.locks import LOCK, TRUST_LEDGER
from installer.host.programs import find_file, run_in
from installer.host.supervision import raise_if_stopped
from installer.host.trees import digest_of, digests_below
from installer.model.effective import OUR_BINARIES
from installer.model.facts import Owner, Record, SpecialVersion, ToolkitRow
from installer.model.files import HEAD_BYTES, OTHERS_WRITE, VERSIONS, Artifact, Carried, File, Kind, Layout
from installer.model.options import Options
from installer.payload.files import LIBRARIES, NOT_OWNED, REQUIRED, WRITABLE, list_damage, search_paths

OPEN: Final = 0o755  # pods with their own user namespace must reach the payload
FOR_ROOT: Final = 0o700
PRIVATE: Final = 0o600
FOR_READING: Final = 0o644
STICKY: Final = 0o1000
MOST_CARRIED_BYTES: Final = 1 << 28  # of an owner's file; runtimes have less than 100 MiB
EVERYBODY: Final = 0o002
OTHERS: Final = 0o077
# A restart of the node empties these directories (file-hierarchy(7)), and the configs that name them stay.
FLEETING: Final = tuple(PurePosixPath(place) for place in ("/run", "/dev", "/proc", "/sys"))
MOST_ABOVE: Final = 3  # directories above and below a source in which a whole toolkit is looked for
MOST_BELOW: Final = 50
ASK_S: Final = 2.0
ASKED: Final = "nvidia-ctk"
LIBRARY: Final = "libnvidia-container.so.1"
_VERSION_SAID: Final = re.compile(r"\bCLI version v?(\d{1,6}(?:\.\d{1,6}){2})\b")
_VERSION_IN_NAME: Final = re.compile(r"\.so\.(\d{1,6}(?:\.\d{1,6}){2})$")


def list_exposed(host: Host, layout: Layout, record: Record) -> Iterator[tuple[PurePosixPath, int, str]]:
    """Yield each of our paths with too many rights for others, the correct mode, and the flaw."""
    for path, mode in _list_modes(host, layout, record):
        entry = entry_of(host, path)
        # In a sticky directory that the operator chose for the pidfile others cannot change our files.
        if entry is None or entry.link or (entry.directory and entry.owned and entry.mode & STICKY):
            continue
        too_much = entry.mode & OTHERS & ~mode
        if not entry.owned:
            yield path, mode, NOT_OWNED
        elif too_much:
            yield path, mode, WRITABLE if too_much & OTHERS_WRITE else "readable by others than root"


def _list_modes(host: Host, layout: Layout, record: Record) -> Iterator[tuple[PurePosixPath, int]]:
    """Yield each of our paths on the node with the correct mode."""
    yield layout.home, OPEN
    yield layout.versions, OPEN
    for directory in (layout.backups, layout.unclaimed):
        yield directory, FOR_ROOT
        for name in host.names(directory):
            yield directory / name, PRIVATE
    yield layout.ledger, PRIVATE
    yield layout.home / LOCK, PRIVATE
    for row in record.configs:
        if row.engine == Owner.CDI:  # root starts the hooks of a CDI specification
            yield row.path, FOR_READING
            yield row.path.parent, OPEN
    if record.pid_file is not None:
        yield record.pid_file.parent, OPEN


def is_given_back(layout: Layout, record: Record, path: PurePosixPath) -> bool:
    """Tell whether an exposed path belongs to our install: then the access may be restored."""
    if path.is_relative_to(layout.home) or path in record.directories:
        return True
    return any(row.path == path for row in record.configs)


def restore_access(host: Host, layout: Layout, record: Record) -> None:
    """Restore owner and mode of our exposed paths; see ``is_given_back``."""
    for path, mode, flaw in list_exposed(host, layout, record):
        if is_given_back(layout, record, path):
            try:
                restrict(host, path, mode)
            except InstallerError as error:  # a file system without owners and modes; status reports the path
                log.warning("exposed file not repaired", path=str(path), reason=f"it is {flaw}", error=error)
            else:
                log.warning("access restored", path=str(path), reason=f"it was {flaw}")


def install_dir_obstacles(host: Host, path: PurePosixPath) -> Iterator[InstallerError]:
    """Yield why programs for root cannot be below ``path``. The path need not exist."""
    real = host.resolve(path)
    for word in host.mounted(path):
        problem = f"install into {path} (its file system is mounted {word})"
        remedy = Remedy("choose another ", Option("install-dir"), ", or remount it")
        yield InstallerError(problem, remedy=remedy, code="install-dir-unusable")
    place = host.open_to_strangers(path / "toolkit")
    if place is None:
        entry = entry_of(host, real)
        # In a sticky directory any user could take the names of our staged files first.
        if entry is not None and entry.directory and entry.mode & STICKY and entry.mode & EVERYBODY:
            place = real
    if place is not None:
        yield _open_to_strangers(host, f"install into {path}", place, "install-dir")
    for emptied in FLEETING:
        if real.is_relative_to(emptied):
            problem = (
                f"install into {path} (a restart of the node empties {emptied}, "
                "and the configs still name it then)"
            )
            remedy = Remedy("choose another ", Option("install-dir"))
            yield InstallerError(problem, remedy=remedy, code="install-dir-unusable")


def refuse_strangers_files(host: Host, options: Options) -> None:
    """Raise InstallerError if others than root could replace the pidfile or the socket of metrics."""
    pid_file = options.pid_file
    named = [(pid_file, f"use {pid_file} as the pidfile", "pid-file")]
    listen = options.metrics_listen
    if listen and listen.path:
        named.append((listen.path, f"listen on {listen.path}", "metrics-listen"))
    for path, what, option in named:
        if place := host.open_to_strangers(path):
            raise _open_to_strangers(host, what, place, option)


def _open_to_strangers(host: Host, what: str, place: PurePosixPath, option: str) -> InstallerError:
    entry = entry_of(host, place)
    if entry is not None and not entry.owned:
        flaw = f"{place} belongs to another user"
        commands = f"chown root {place}; chmod go-w {place}"
    else:
        flaw = f"others than root may write {place}"
        commands = f"chmod o-w {place}"
    remedy = Remedy(f"{commands}; or choose another ", Option(option))
    return InstallerError(f"{what} ({flaw})", remedy=remedy, code="install-dir-unusable")


def refuse_foreign_ledger(path: PurePosixPath, file: File) -> None:
    """Raise InstallerError if others than root may have written a ledger: root acts on the content."""
    if file.meta.uid not in trusted_uids():
        flaw = NOT_OWNED
    elif file.meta.mode & OTHERS_WRITE:
        flaw = WRITABLE
    else:
        return
    problem = f"trust the ledger {path} (it is {flaw})"
    raise InstallerError(problem, remedy=TRUST_LEDGER.format(path), code="ledger-unusable")


def find_damage(host: Host, layout: Layout, toolkit: ToolkitRow, *, deep: bool) -> Iterator[tuple[str, str]]:
    """Yield each damaged file of the payload with the flaw; ``deep`` reads large files again."""
    if toolkit.files:
        version = layout.version(toolkit.version)
        digests = digests_below(host, version, anew=deep)
        yield from list_damage(toolkit.files, entries(host, version), digests)


def is_foreign_toolkit(host: Host, layout: Layout) -> bool:
    """Tell whether the programs at the toolkit's name belong to another installer."""
    if (host.link_target(layout.toolkit) or "").startswith(VERSIONS):
        return False
    if not any(host.kind(layout.toolkit / name) is Kind.FILE for name in OUR_BINARIES):
        return False
    return not host.resolve(layout.toolkit).is_relative_to(host.resolve(layout.home))


def drop_foreign(host: Host, layout: Layout, record: Record) -> Record:
    """Drop the rows that now belong to another installer's toolkit from the record."""
    # NVIDIA's installer writes the same keys with the same values: the owner of the named programs decides.
    # NVIDIA's CDI specification is the same, too (engine-facts.md#nvidia-ctk-cdi): the time of its write
    # decides.
    toolkit = record.toolkit
    if toolkit is None or toolkit.version == SpecialVersion.ADOPTED or not is_foreign_toolkit(host, layout):
        return record
    since_s = host.changed_s(layout.toolkit)
    specifications = []
    for row in record.configs:
        if row.engine != Owner.CDI:
            continue
        written_by_others = host.kind(row.path) is Kind.FILE and host.changed_s(row.path) >= since_s
        if not written_by_others:
            specifications.append(row)
    return replace(record, toolkit=None, engines=(), configs=tuple(specifications), undo_problem="")


def ask_version(root: PurePosixPath, sums: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the version of the toolkit below ``root``, from the program or else the library's file name.

    A release candidate (1.18.0-rc.1) counts as the release.
    """
    program = find_artifact(root, ASKED)
    library = find_artifact(root, LIBRARY)
    by_name = _read_version(_VERSION_IN_NAME, library.name if library else "")
    if program is None or (sums and by_name):  # all packages of a source with sums have one version
        return by_name
    ran = run_in(Path("/"), (str(program), "--version"), timeout_s=ASK_S)
    if ran is None or ran.returncode:
        return by_name
    return _read_version(_VERSION_SAID, ran.stdout) or by_name


def _read_version(pattern: re.Pattern[str], text: str) -> tuple[int, ...] | None:
    found = pattern.search(text)
    if found is None:
        return None
    return tuple(int(number) for number in found[1].split("."))


def read_artifacts(root: PurePosixPath, sums: Mapping[str, str]) -> tuple[Artifact, ...]:
    """Return the files of the toolkit below ``root``.

    Args:
        root: the root of the toolkit's source.
        sums: SHA-256 digests by path relative to ``root``; files with a sum are not read to compute one.

    Raises:
        InstallerError: a file cannot be read, or the links of the root go round in a circle.
    """
    top = Path(resolve_local(root))
    found = []
    for name in REQUIRED:
        place = _find(root, name)
        if place is None:
            continue
        path = Path(root / place).resolve()
        with translated("read", PurePosixPath(path)), path.open("rb") as file:
            status = path.stat()
            head = file.read(HEAD_BYTES)
        digest = ""
        if path.is_relative_to(top):
            digest = sums.get(str(path.relative_to(top)), "")
        if not digest:
            digest = digest_of(str(path), check=raise_if_stopped)
        artifact = Artifact(
            name=name,
            file_name=path.name,
            source=PurePosixPath(path),
            size_bytes=status.st_size,
            mode=status.st_mode & 0o7777,
            digest=digest,
            head=head,
            place=place,
        )
        found.append(artifact)
    return tuple(found)


def explain_source(root: PurePosixPath) -> str:
    """Return why no file can be below a source; "" for a directory."""
    path = Path(root)
    if path.is_dir():
        return ""
    return "it is not a directory" if path.exists() else "it does not exist"


def find_complete_root(root: PurePosixPath) -> PurePosixPath | None:
    """Return a directory right below or above ``root`` with a whole toolkit; None without one.

    A user may name /opt/toolkit/usr in the place of /opt/toolkit, or /opt.
    """
    below: list[PurePosixPath] = []
    with suppress(OSError):
        for path in sorted(Path(root).iterdir())[:MOST_BELOW]:
            if path.is_dir():
                below.append(root / path.name)
    for candidate in (*below, *tuple(root.parents)[:MOST_ABOVE]):
        if all(_find(candidate, name) is not None for name in REQUIRED):
            return candidate
    return None


def find_artifact(root: PurePosixPath, name: str) -> PurePosixPath | None:
    """Return the path of a file of the toolkit below ``root``, with all links resolved; None if missing."""
    place = _find(root, name)
    if place is None:
        return None
    return PurePosixPath(Path(root / place).resolve())


def _find(root: PurePosixPath, name: str) -> PurePosixPath | None:
    return find_file(root, search_paths(name), executable=name not in LIBRARIES)


def find_portable(host: Host, layout: Layout, below: PurePosixPath) -> Carried | None:
    """Return the file at a path below the toolkit's directory, if another version can have a copy.

    Raises:
        InstallerError: the path cannot be looked at.
    """
    path = layout.toolkit / below
    # Through a directory that is left out of a copy, ".." would lead nowhere.
    if ".." in below.parts or host.kind(path) is not Kind.FILE:
        return None
    source = PurePosixPath(host.local_path(path))
    real = host.resolve(path)
    directories = (host.resolve(layout.toolkit), host.resolve(layout.home))
    if not any(map(real.is_relative_to, directories)):
        target = host.resolve(path.parent) / (host.link_target(path) or real)
        own_target = PurePosixPath(normpath(target))  # which its owner may lead elsewhere later
        return Carried(below, source, 0, target=str(own_target if host.resolve(own_target) == real else real))
    size_bytes = host.size(path)
    if size_bytes > MOST_CARRIED_BYTES:
        return None
    return Carried(below, source, size_bytes)
