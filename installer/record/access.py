"""Who may do what in our own directory: looked at by ``status``, put right by whoever holds the lock."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.inode import Entry, File
from installer.decide.integrity import NOT_OWNED, OTHERS_WRITE, WRITABLE
from installer.decide.layout import Layout
from installer.decide.options import Options
from installer.decide.rows import Record
from installer.host.entries import entry_of, restrict
from installer.host.files import Host
from installer.host.kernel import trusted_uids
from installer.host.locks import LOCK

OPEN: Final = 0o755  # pods with a user namespace of their own must reach the payload
FOR_ROOT: Final = 0o700
PRIVATE: Final = 0o600
STICKY: Final = 0o1000
EVERYBODY: Final = 0o002
OTHERS: Final = 0o077


# Gone with the next start of the node (file-hierarchy(7)), while the configs that name it stay.
FLEETING: Final = tuple(PurePosixPath(place) for place in ("/run", "/dev", "/proc", "/sys"))


def exposed(host: Host, layout: Layout, held: Record) -> Iterator[tuple[PurePosixPath, int, str]]:
    """Yield each path of ours that others than root may do too much with, its mode as it should be, and what.

    A sticky directory that the operator chose for the pidfile keeps others from our files by itself.
    """
    saved = (layout.backups, layout.unclaimed)
    wanted = [
        (layout.home, OPEN),
        (layout.versions, OPEN),
        *((directory, FOR_ROOT) for directory in saved),
        *((directory / name, PRIVATE) for directory in saved for name in host.names(directory)),
        (layout.ledger, PRIVATE),
        (layout.home / LOCK, PRIVATE),
    ]
    if held.pid_file is not None:
        wanted.append((held.pid_file.parent, OPEN))
    for path, mode in wanted:
        entry = entry_of(host, path)
        if entry is not None and (flaw := _flaw(entry, mode)):
            yield path, mode, flaw


def _flaw(entry: Entry, mode: int) -> str:
    if entry.link or (entry.directory and entry.owned and entry.mode & STICKY):
        return ""
    if not entry.owned:
        return NOT_OWNED
    too_much = entry.mode & OTHERS & ~mode
    return (WRITABLE if too_much & OTHERS_WRITE else "readable by others than root") if too_much else ""


def restore_access(host: Host, layout: Layout, held: Record) -> None:
    """Give what is exposed back to root alone; a directory for the pidfile only where we made it."""
    for path, mode, flaw in exposed(host, layout, held):
        if path.is_relative_to(layout.home) or path in held.directories:
            from installer.host.events import log

            try:
                restrict(host, path, mode)
            except InstallerError as error:  # a file system without owners and modes; status goes on to tell
                log.warning("access not restored", path=str(path), reason=f"it is {flaw}", error=error)
            else:
                log.warning("access restored", path=str(path), reason=f"it was {flaw}")


def install_dir_obstacles(host: Host, path: PurePosixPath) -> Iterator[InstallerError]:
    """Yield why programs that root runs cannot be below ``path``: they would be exchanged or lost."""
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


def unusable(host: Host, path: PurePosixPath) -> Iterator[InstallerError]:
    """Yield why nothing could be installed or run below ``path``, which need not exist."""
    for word in host.mounted(path):
        yield InstallerError(
            f"install into {path} (its file system is mounted {word})",
            remedy=Remedy("choose another ", Option("install-dir"), ", or remount it"),
            code="install-dir-unusable",
        )


def refuse_strangers_files(host: Host, options: Options) -> None:
    """Raise where somebody who is not root could exchange the pidfile, or the socket of metrics.

    Raises:
        InstallerError: always in that case.
    """
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
    return InstallerError(
        f"{what} ({flaw})",
        remedy=Remedy(f"{way}; or choose another ", Option(option)),
        code="install-dir-unusable",
    )


def refuse_foreign_ledger(path: PurePosixPath, file: File) -> None:
    """Raise where somebody who is not root may have written the ledger: it tells root what to write where.

    Raises:
        InstallerError: always in that case.
    """
    owned = file.meta.uid in trusted_uids()
    if not owned or file.meta.mode & OTHERS_WRITE:
        raise InstallerError(
            f"believe the ledger {path} (it is {WRITABLE if owned else NOT_OWNED})",
            remedy=f"look whether it names only what is ours, then: chown root {path}; chmod 600 {path}",
            code="ledger-unusable",
        )
