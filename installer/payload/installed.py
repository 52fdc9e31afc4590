"""The toolkit as its source holds it, and what stands in its place: whose it is, and who may write there."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.errors import InstallerError, Option, Remedy
from installer.host.events import log
from installer.host.files import Host, entries, entry_of, restrict
from installer.host.inodes import translated
from installer.host.kernel import trusted_uids
from installer.host.locks import LOCK, TRUST_LEDGER
from installer.host.programs import find_file, run_in
from installer.host.supervision import raise_if_stopped
from installer.host.trees import digest_of, digests_below
from installer.model.engine_spec import OUR_BINARIES
from installer.model.facts import ADOPTED, OWNER, Record, ToolkitRow
from installer.model.files import HEAD_BYTES, OTHERS_WRITE, VERSIONS, Artifact, File, Kind, Layout
from installer.model.options import Options
from installer.payload.files import LIBRARIES, NOT_OWNED, REQUIRED, WRITABLE, list_damage, search_paths

OPEN: Final = 0o755  # pods with a user namespace of their own must reach the payload
FOR_ROOT: Final = 0o700
PRIVATE: Final = 0o600
FOR_READING: Final = 0o644
STICKY: Final = 0o1000
EVERYBODY: Final = 0o002
OTHERS: Final = 0o077
# Gone with the next start of the node (file-hierarchy(7)), while the configs that name it stay.
FLEETING: Final = tuple(PurePosixPath(place) for place in ("/run", "/dev", "/proc", "/sys"))
ASK_S: Final = 2.0
ASKED: Final = "nvidia-ctk"
LIBRARY: Final = "libnvidia-container.so.1"
_VERSION_SAID: Final = re.compile(r"\bCLI version v?(\d{1,6}(?:\.\d{1,6}){2})\b")
_VERSION_IN_NAME: Final = re.compile(r"\.so\.(\d{1,6}(?:\.\d{1,6}){2})$")


def list_exposed(host: Host, layout: Layout, record: Record) -> Iterator[tuple[PurePosixPath, int, str]]:
    """Yield each path of ours that others may do too much with, its mode as it should be, and what."""
    saved = (layout.backups, layout.unclaimed)
    wanted = [
        (layout.home, OPEN),
        (layout.versions, OPEN),
        *((directory, FOR_ROOT) for directory in saved),
        *((directory / name, PRIVATE) for directory in saved for name in host.names(directory)),
        (layout.ledger, PRIVATE),
        (layout.home / LOCK, PRIVATE),
    ]
    for row in (row for row in record.configs if row.engine == OWNER):  # its hooks are started as root
        wanted += [(row.path, FOR_READING), (row.path.parent, OPEN)]
    if record.pid_file is not None:
        wanted.append((record.pid_file.parent, OPEN))
    for path, mode in wanted:
        entry = entry_of(host, path)
        # A sticky directory that the operator chose for the pidfile keeps others from our files by itself.
        if entry is None or entry.link or (entry.directory and entry.owned and entry.mode & STICKY):
            continue
        too_much = entry.mode & OTHERS & ~mode
        if not entry.owned:
            yield path, mode, NOT_OWNED
        elif too_much:
            yield path, mode, WRITABLE if too_much & OTHERS_WRITE else "readable by others than root"


def is_given_back(layout: Layout, record: Record, path: PurePosixPath) -> bool:
    """Tell whether a path that is exposed is ours to put right."""
    ours = (*record.directories, *(row.path for row in record.configs))
    return path.is_relative_to(layout.home) or path in ours


def restore_access(host: Host, layout: Layout, record: Record) -> None:
    """Give what is exposed back to root alone; a directory of a single file of ours only where we made it."""
    for path, mode, flaw in list_exposed(host, layout, record):
        if is_given_back(layout, record, path):
            try:
                restrict(host, path, mode)
            except InstallerError as error:  # a file system without owners and modes; status goes on to tell
                log.warning("exposed file not repaired", path=str(path), reason=f"it is {flaw}", error=error)
            else:
                log.warning("access restored", path=str(path), reason=f"it was {flaw}")


def install_dir_obstacles(host: Host, path: PurePosixPath) -> Iterator[InstallerError]:
    """Yield why programs that root runs cannot be below ``path``, which need not exist."""
    for word in host.mounted(path):
        problem = f"install into {path} (its file system is mounted {word})"
        remedy = Remedy("choose another ", Option("install-dir"), ", or remount it")
        yield InstallerError(problem, remedy=remedy, code="install-dir-unusable")
    entry = entry_of(host, host.resolve(path))
    # What is staged there has names that anybody could take first in a sticky directory.
    everybodys = entry is not None and entry.directory and entry.mode & STICKY and entry.mode & EVERYBODY
    place = host.open_to_strangers(path / "toolkit") or (host.resolve(path) if everybodys else None)
    if place is not None:
        yield _open_to_strangers(host, f"install into {path}", place, "install-dir")
    real = host.resolve(path)
    for gone in (each for each in FLEETING if real.is_relative_to(each)):
        yield InstallerError(
            f"install into {path} (a restart of the node empties {gone}, and the configs still name it then)",
            remedy=Remedy("choose another ", Option("install-dir")),
            code="install-dir-unusable",
        )


def refuse_strangers_files(host: Host, options: Options) -> None:
    """Raise InstallerError where others than root could exchange the pidfile, or the socket of metrics."""
    pidfile, listen = options.pid_file, options.metrics_listen
    named = [(pidfile, f"use {pidfile} as the pidfile", "pid-file")]
    named += [(listen.path, f"listen on {listen.path}", "metrics-listen")] if listen and listen.path else []
    for path, what, option in named:
        if place := host.open_to_strangers(path):
            raise _open_to_strangers(host, what, place, option)


def _open_to_strangers(host: Host, what: str, place: PurePosixPath, option: str) -> InstallerError:
    entry = entry_of(host, place)
    if entry is not None and not entry.owned:
        flaw, way = f"{place} belongs to another user", f"chown root {place}; chmod go-w {place}"
    else:
        flaw, way = f"others than root may write {place}", f"chmod o-w {place}"
    remedy = Remedy(f"{way}; or choose another ", Option(option))
    return InstallerError(f"{what} ({flaw})", remedy=remedy, code="install-dir-unusable")


def refuse_foreign_ledger(path: PurePosixPath, file: File) -> None:
    """Raise InstallerError where others than root may have written a ledger: it tells root what to write."""
    owned = file.meta.uid in trusted_uids()
    if not owned or file.meta.mode & OTHERS_WRITE:
        problem = f"trust the ledger {path} (it is {WRITABLE if owned else NOT_OWNED})"
        raise InstallerError(problem, remedy=TRUST_LEDGER.format(path), code="ledger-unusable")


def find_damage(host: Host, layout: Layout, toolkit: ToolkitRow, *, deep: bool) -> Iterator[tuple[str, str]]:
    """Yield each file of the payload that is not as it was installed; ``deep`` reads large ones anew."""
    if toolkit.files:
        version = layout.version(toolkit.version)
        digests = digests_below(host, version, anew=deep)
        yield from list_damage(toolkit.files, entries(host, version), digests)


def is_foreign_toolkit(host: Host, layout: Layout) -> bool:
    """Tell whether the programs at the toolkit's name are not those that we have installed."""
    if (host.link_target(layout.toolkit) or "").startswith(VERSIONS):
        return False
    if not any(host.kind(layout.toolkit / name) is Kind.FILE for name in OUR_BINARIES):
        return False
    return not host.resolve(layout.toolkit).is_relative_to(host.resolve(layout.home))


def drop_foreign(host: Host, layout: Layout, record: Record) -> Record:
    """Return the rows without those of runtimes that start the toolkit of another installer now."""
    # NVIDIA's writes the same keys with the same values: what they name tells whose they are. Its
    # specification is the same, too (engine-facts.md#nvidia-ctk-cdi): the time of the write tells.
    if record.toolkit is None or record.toolkit.version == ADOPTED or not is_foreign_toolkit(host, layout):
        return record
    since_s = host.changed_s(layout.toolkit)
    specifications = tuple(
        row
        for row in record.configs
        if row.engine == OWNER
        and not (host.kind(row.path) is Kind.FILE and host.changed_s(row.path) >= since_s)
    )
    return replace(record, toolkit=None, engines=(), configs=specifications, left="")


def ask_version(root: PurePosixPath, sums: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the version of the toolkit below ``root``: as its program says, else as its library is named."""
    program, library = find_artifact(root, ASKED), find_artifact(root, LIBRARY)
    # A release that is yet to come (1.18.0-rc.1) counts as it.
    by_name = _read_version(_VERSION_IN_NAME, library.name if library else "")
    if program is None or (sums and by_name):  # all packages of a source with sums have one version
        return by_name
    ran = run_in(Path("/"), (str(program), "--version"), timeout_s=ASK_S)
    return (_read_version(_VERSION_SAID, ran.stdout) if ran and not ran.returncode else None) or by_name


def _read_version(pattern: re.Pattern[str], text: str) -> tuple[int, ...] | None:
    found = pattern.search(text)
    return tuple(int(number) for number in found[1].split(".")) if found else None


def read_artifacts(root: PurePosixPath, sums: Mapping[str, str]) -> tuple[Artifact, ...]:
    """Return the files of the toolkit below ``root``, those in ``sums`` not read; raise if one cannot."""
    top, found = Path(root).resolve(), []
    for name, place in ((name, _find(root, name)) for name in REQUIRED):
        if place is None:
            continue
        path = Path(root / place).resolve()
        with translated("read", PurePosixPath(path)), path.open("rb") as file:
            status, head = path.stat(), file.read(HEAD_BYTES)
        digest = sums.get(str(path.relative_to(top)), "") if path.is_relative_to(top) else ""
        digest, mode = digest or digest_of(str(path), check=raise_if_stopped), status.st_mode & 0o7777
        source = PurePosixPath(path)
        found.append(Artifact(name, path.name, source, status.st_size, mode, digest, head, place))
    return tuple(found)


def find_artifact(root: PurePosixPath, name: str) -> PurePosixPath | None:
    """Return where one file of the toolkit is below ``root``, no link left."""
    place = _find(root, name)
    return PurePosixPath(Path(root / place).resolve()) if place else None


def _find(root: PurePosixPath, name: str) -> PurePosixPath | None:
    return find_file(root, search_paths(name), executable=name not in LIBRARIES)
