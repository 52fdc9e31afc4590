"""Files for others to read, metrics and labels: ours are replaced and removed, anybody else's never."""

from pathlib import PurePosixPath
from typing import Final

from installer.errors import InstallerError, Option, Remedy
from installer.host.files import Host, entry_of
from installer.host.kernel import trusted_uids
from installer.host.sockets import is_abandoned, is_like_ours
from installer.model.files import File, Kind

MARK: Final = "# Written by toolkit-installer, and removed by its uninstall."
# With which the text for --metrics-listen begins, and that of 0.2.0: it has no comments.
OPENMETRICS_MARKS: Final = ("# HELP toolkit_installer ", "# TYPE toolkit_installer info")
MARKS: Final = tuple(each.encode() for each in (MARK, *OPENMETRICS_MARKS))
# By the end of its name; labels of the node have another one.
METRICS: Final = ".prom"
ANSWER: Final = ".openmetrics"
SOCKET: Final = ".sock"
FLAGS: Final = {
    METRICS: Option("metrics-textfile"),
    ANSWER: Option("metrics-listen"),
    SOCKET: Option("metrics-listen"),
}


def publish(host: Host, path: PurePosixPath, text: str) -> None:
    """Put ``text`` at ``path``, in a directory that is there, by a rename.

    Raises:
        InstallerError: it cannot be written, or somebody else's file has that name.
    """
    flag = FLAGS.get(path.suffix, Option("nfd-features"))
    # A directory of somebody else's that goes and comes again is one that node_exporter and NFD lose.
    if host.kind(path.parent) is not Kind.DIRECTORY:
        raise InstallerError(
            f"write {path} (there is no directory {path.parent})",
            remedy=Remedy("make it, or name the one that is read with ", flag),
            code="file-operation-failed",
        )
    if is_foreign(host, path):
        raise InstallerError(
            f"write {path} (what is there is not from us)",
            remedy=Remedy("move it away, or choose another path with ", flag),
            code="name-taken",
        )
    file = File(text.encode(errors="replace"))
    found = host.read(path)
    if found is None or found.content != file.content:
        host.replace(path, file)


def remove(host: Host, path: PurePosixPath) -> None:
    """Remove a file or a socket of ours; anything else stays.

    Raises:
        InstallerError: it cannot be removed.
    """
    if is_foreign(host, path):  # a link of a stranger's is not followed
        return
    host.sweep(path)
    local = host.local_path(path, last=False)
    if is_abandoned(local) if path.suffix == SOCKET else _is_ours(host, path):
        host.remove(path)


def is_foreign(host: Host, path: PurePosixPath) -> bool:
    """Tell whether something stands at ``path`` that is not from us."""
    if path.suffix == SOCKET:
        return host.exists(path) and not is_like_ours(host.local_path(path, last=False))
    return host.exists(path) and not _is_ours(host, path)


def _is_ours(host: Host, path: PurePosixPath) -> bool:
    entry = entry_of(host, path)
    if host.kind(path, last=False) is not Kind.FILE or entry is None or not entry.owned:
        return False  # a stranger's is not read, for it may have any size
    file = host.read(path)
    return file is not None and file.meta.uid in trusted_uids() and file.content.startswith(MARKS)
