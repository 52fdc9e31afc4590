"""Readiness: a file that is there only while the engines were proven to serve our runtimes."""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.inode import File, Kind
from installer.decide.rows import Record
from installer.host.boot import boot_id, own_pid, runs
from installer.host.files import Host
from installer.record.rows_json import dumps
from installer.record.texts import told_by_root

OURS: Final = frozenset({"boot_id", "pid", "plan", "engines", "time"})


def publish(
    host: Host,
    path: PurePosixPath,
    held: Record,
    asked: Sequence[str] = (),
    seen: Sequence[str] = (),
) -> None:
    """Say that everything in the ledger is in force since now, in this boot, by this process.

    ``seen`` are the marks of what ``status`` looks at, by which a probe for what was ``asked`` knows that all
    is still as it was (``probes``, which takes the order of these fields, and this text, as they are).
    """
    text = json.dumps(
        {
            "boot_id": boot_id(),
            "pid": own_pid(),
            "plan": hashlib.sha256(dumps(held)).hexdigest(),
            "engines": list(held.served),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "asked": [*asked],
            "seen": [*seen],
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


def is_ready(host: Host, path: PurePosixPath) -> bool:
    """Tell whether somebody has published readiness in this boot and still runs."""
    said = told_by_root(host, path)
    try:
        return said["boot_id"] == boot_id() and runs(said["pid"])
    except (KeyError, TypeError, ValueError):
        return False
