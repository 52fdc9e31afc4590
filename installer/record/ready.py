"""Readiness: a file that is there only while the engines were proven to serve our runtimes."""

import hashlib
import json
import time
from pathlib import PurePosixPath

from installer.decide.inode import File
from installer.decide.rows import Holdings
from installer.host.boot import boot_id, own_pid, runs
from installer.host.files import Host
from installer.record.rows_json import dumps


def publish(host: Host, path: PurePosixPath, held: Holdings) -> None:
    """Say that everything in the ledger is in force since now, in this boot, by this process."""
    text = json.dumps(
        {
            "boot_id": boot_id(),
            "pid": own_pid(),
            "plan": hashlib.sha256(dumps(held)).hexdigest(),
            "engines": [engine.name for engine in held.engines],
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
    )
    host.replace(path, File(text.encode() + b"\n"))


def is_ready(host: Host, path: PurePosixPath) -> bool:
    """Tell whether somebody has published readiness in this boot and still runs."""
    file = host.read(path)
    if file is None:
        return False
    try:
        said = json.loads(file.content)
        return said["boot_id"] == boot_id() and runs(said["pid"])
    except (ValueError, KeyError, TypeError):
        return False
