"""The readiness file of ``run``, beside its pidfile: it exists while the engines serve."""

import hashlib
import time
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from installer.change import ledger
from installer.errors import InstallerError, Option, Remedy
from installer.host.files import Host, read_json_of_root
from installer.host.kernel import boot_id
from installer.host.locks import is_pidfile_locked
from installer.host.supervision import own_pid
from installer.model.facts import Record
from installer.model.files import File, Kind, dumps


class Ready(Struct, frozen=True):
    """The content of the readiness file."""

    # ``probe`` compares the beginning of the text: boot and pid stay the first fields.
    boot_id: str
    pid: int
    plan: str
    engines: tuple[str, ...]
    time: str


class Header(Struct, frozen=True):
    """The fields of both files that ``run`` publishes; a file without them is another program's."""

    boot_id: str
    pid: int
    engines: tuple[Any, ...]
    time: str


def publish(host: Host, path: PurePosixPath, record: Record) -> None:
    """Publish readiness: everything in the ledger is in force, in this boot, by this process."""
    plan = hashlib.sha256(ledger.dumps(record)).hexdigest()
    ready = Ready(boot_id=boot_id(), pid=own_pid(), plan=plan, engines=record.served, time=stamp())
    host.replace(path, File(dumps(ready)))


def remove(host: Host, path: PurePosixPath) -> None:
    """Remove a file that ``run`` has published; another program's file of that name stays."""
    if _is_ours(host, path):
        host.remove(path)


def refuse_foreign(host: Host, path: PurePosixPath) -> None:
    """Refuse a file at ``path`` that ``run`` has not published.

    Raises:
        InstallerError: the file is another program's.
    """
    if host.exists(path) and not _is_ours(host, path):
        problem = f"publish readiness in {path} (it is another program's file)"
        remedy = Remedy("move it away, or choose a ", Option("pid-file"), " in another directory")
        raise InstallerError(problem, remedy=remedy, code="name-taken")


def _is_ours(host: Host, path: PurePosixPath) -> bool:
    return host.kind(path, last=False) is Kind.FILE and read_json_of_root(host, path, Header) is not None


def is_ready(host: Host, path: PurePosixPath, pid_file: PurePosixPath) -> bool:
    """Tell whether readiness was published in this boot, by the process that holds the pidfile."""
    ready = read_json_of_root(host, path, Ready)
    if ready is None or ready.boot_id != boot_id() or not is_pidfile_locked(host.local_path(pid_file)):
        return False
    file = host.read(pid_file)
    return file is not None and file.content.strip() == str(ready.pid).encode()


def clock(moment_s: float) -> str:
    """Return a moment of ``time.monotonic`` as the time of day."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time.time() - time.monotonic() + moment_s))


def stamp() -> str:
    """Return this moment in the form of our files."""
    return format_utc(time.time())


def format_utc(moment_s: float) -> str:
    """Return a moment, in seconds since 1970, in the form of our files."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment_s))
