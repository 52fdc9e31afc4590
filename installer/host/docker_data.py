"""What a dockerd that is stopped will know of its containers, from the files below its data-root."""

import json
import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Any, Final

from installer.decide.errors import InstallerError
from installer.host.dockerd import DockerContainer
from installer.host.files import Host

USUAL: Final = PurePosixPath("/var/lib/docker")
ID: Final = re.compile(r"[0-9a-f]{64}")
NAME: Final = re.compile(r"/?([a-zA-Z0-9][a-zA-Z0-9_.-]{0,254})")  # moby's daemon/names
MAX_BYTES: Final = 1 << 20  # of one file; a usual one has 3 kB
SHORT_ID: Final = 12


def containers(host: Host, data_root: PurePosixPath) -> tuple[DockerContainer, ...]:
    """Return all containers, none of them running: what the files say of that is of the past.

    The files are the same with dockerd 20.10, 26.1 and 28.5.
    """
    directory = data_root / "containers"
    found = []
    try:
        names, local = host.names(directory), host.local_path(directory)
    except InstallerError:
        return ()
    for name in filter(ID.fullmatch, names):
        runtime = _said(local / name / "hostconfig.json").get("Runtime")
        if isinstance(runtime, str) and runtime:
            said = _said(local / name / "config.v2.json").get("Name")
            called = NAME.fullmatch(said) if isinstance(said, str) else None
            found.append(
                DockerContainer(name, called[1] if called else name[:SHORT_ID], runtime, running=False)
            )
    return tuple(found)


def _said(path: Path) -> dict[str, Any]:
    """Return the JSON object in a regular file of root's; an empty one where there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid or status.st_size > MAX_BYTES:
            return {}
        said = json.loads(os.read(file, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(file)
    return said if isinstance(said, dict) else {}
