"""Readiness: a file that is there only while the engines were proven to serve our runtimes."""

import hashlib
import json
import time
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.inode import File, Kind
from installer.decide.rows import Record
from installer.host.boot import boot_id
from installer.host.files import Host
from installer.host.glance import is_held_pidfile
from installer.host.supervision import own_pid
from installer.record.rows_json import dumps
from installer.record.texts import told_by_root

OURS: Final = frozenset({"boot_id", "pid", "plan", "engines", "time"})


def publish(host: Host, path: PurePosixPath, held: Record) -> None:
    """Say that everything in the ledger is in force since now, in this boot, by this process.

    ``probe`` compares the beginning of this text: boot and pid stay its first fields.
    """
    text = json.dumps(
        {
            "boot_id": boot_id(),
            "pid": own_pid(),
            "plan": hashlib.sha256(dumps(held)).hexdigest(),
            "engines": list(held.served),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
    )
    host.replace(path, File(text.encode() + b"\n"))


def remove(host: Host, path: PurePosixPath) -> None:
    """Say that nothing is proven any more; a file of somebody else's with that name stays."""
    if _is_ours(host, path):
        host.remove(path)


def refuse_foreign(host: Host, path: PurePosixPath) -> None:
    """Raise where readiness could only be published over something of somebody else's.

    Raises:
        InstallerError: what has that name is not a readiness file.
    """
    if host.exists(path) and not _is_ours(host, path):
        raise InstallerError(
            f"publish readiness in {path} (what is there is not from us)",
            remedy=Remedy("move it away, or choose a ", Option("pid-file"), " in another directory"),
            code="name-taken",
        )


def _is_ours(host: Host, path: PurePosixPath) -> bool:
    return host.kind(path, last=False) is Kind.FILE and told_by_root(host, path).keys() >= OURS


def is_ready(host: Host, path: PurePosixPath, pid_file: PurePosixPath) -> bool:
    """Tell whether readiness was published in this boot, by the process that holds the pidfile."""
    said = told_by_root(host, path)
    held = host.read(pid_file) if is_held_pidfile(str(host.local_path(pid_file))) else None
    if held is None or said.get("boot_id") != boot_id():
        return False
    return held.content.strip() == str(said.get("pid")).encode()
