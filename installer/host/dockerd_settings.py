"""What dockerd says of itself besides its runtimes."""

import json
import time
from pathlib import Path

from installer.decide.data import dataclass
from installer.host import http


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """``cgroup_driver`` is systemd or cgroupfs, or none without cgroups."""

    cgroup_driver: str = ""
    live_restore: bool | None = None


def settings(socket_path: Path, *, timeout_s: float) -> DockerSettings:
    """Ask dockerd; what it does not answer is left open."""
    try:
        said = json.loads(http.get(socket_path, "/info", deadline=time.monotonic() + timeout_s))
        live = said.get("LiveRestoreEnabled")
        return DockerSettings(str(said.get("CgroupDriver", "")), live if isinstance(live, bool) else None)
    except (OSError, ValueError, AttributeError, RecursionError):
        return DockerSettings()
