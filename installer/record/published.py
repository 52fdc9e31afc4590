"""Files for others to read, metrics and labels: ours are replaced and removed, anybody else's never."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.inode import File, Kind
from installer.decide.metrics import MARK, OPENMETRICS_MARK
from installer.host.entries import entry_of
from installer.host.files import Host
from installer.host.kernel import trusted_uids
from installer.host.listening import abandoned

# By the end of its name; labels of the node have another one.
METRICS: Final = ".prom"
ANSWER: Final = ".openmetrics"
SOCKET: Final = ".sock"
MARKS: Final = (MARK.encode(), OPENMETRICS_MARK.encode())
FLAGS: Final = {
    METRICS: Option("metrics-textfile"),
    ANSWER: Option("metrics-listen"),
    SOCKET: Option("metrics-listen"),
}


def flag_of(path: PurePosixPath) -> Option:
    """Return the flag that names a file."""
    return FLAGS.get(path.suffix, Option("nfd-features"))


def obstacles(
    host: Host, paths: Iterable[PurePosixPath], known: Collection[PurePosixPath]
) -> Iterator[InstallerError]:
    """Yield why something cannot be told: root has put something there that is not from us.

    What anybody else has put there stays as well, but is no reason to stop: strangers decide nothing. A
    socket does not tell whose it is: one that is ``known`` is ours, and one that a killed run has left.
    """
    for path in paths:
        if not host.exists(path):
            continue
        if path.suffix == SOCKET:
            ours = path in known and host.kind(path, last=False) is Kind.OTHER
            if not (ours or abandoned(host, path)):
                yield _foreign(path)
        elif not (_is_strangers(host, path) or _is_ours(host, path)):
            yield _foreign(path)


def _foreign(path: PurePosixPath) -> InstallerError:
    return InstallerError(
        f"write {path} (what is there is not from us)",
        remedy=Remedy("move it away, or choose another path with ", flag_of(path)),
        code="name-taken",
    )


def publish(host: Host, path: PurePosixPath, text: str) -> None:
    """Put ``text`` at ``path``, in a directory that is there, by a rename.

    Raises:
        InstallerError: it cannot be written, or somebody else's file has that name.
    """
    # A directory of somebody else's that goes and comes again is one that node_exporter and NFD lose.
    if host.kind(path.parent) is not Kind.DIRECTORY:
        raise InstallerError(
            f"write {path} (there is no directory {path.parent})",
            remedy=Remedy("make it, or name the one that is read with ", flag_of(path)),
            code="file-operation-failed",
        )
    if host.exists(path) and not _is_ours(host, path):
        raise _foreign(path)
    file = File(text.encode(errors="replace"))
    found = host.read(path)
    if found is None or found.content != file.content:
        host.replace(path, file)


def remove(host: Host, path: PurePosixPath) -> None:
    """Remove a file or a socket of ours; anything else stays.

    Raises:
        InstallerError: it cannot be removed.
    """
    if path.suffix == SOCKET:
        if host.kind(path, last=False) is Kind.OTHER:
            host.remove(path)
        return
    host.sweep(path)
    if _is_ours(host, path):
        host.remove(path)


def _is_strangers(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a file is not root's: it is not read, for it may have any size."""
    entry = entry_of(host, path)
    return host.kind(path, last=False) is Kind.FILE and entry is not None and not entry.owned


def _is_ours(host: Host, path: PurePosixPath) -> bool:
    if host.kind(path, last=False) is not Kind.FILE or _is_strangers(host, path):
        return False
    file = host.read(path)
    return file is not None and file.meta.uid in trusted_uids() and file.content.startswith(MARKS)
