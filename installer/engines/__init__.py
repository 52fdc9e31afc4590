"""The engines: one row each, at the end of its own file.

Imports host, model and config_text. Begin with observe.py, then dry_run.py and restart.py.
"""

from pathlib import PurePosixPath
from typing import Final

from installer.engines.containerd.config import CONTAINERD, K3S, RKE2
from installer.engines.crio.config import CRIO
from installer.engines.docker.config import DOCKER
from installer.engines.k0s import K0S
from installer.engines.microk8s import MICROK8S

ENGINES: Final = {engine.name: engine for engine in (DOCKER, CONTAINERD, CRIO, K3S, RKE2, K0S, MICROK8S)}


def list_generating(process: str, config: PurePosixPath, socket: PurePosixPath) -> tuple[str, ...]:
    """Return the engines that write their config themselves and have such a config or socket."""
    return tuple(
        engine.name
        for engine in ENGINES.values()
        if engine.process == process
        if any(mark in str(path) for mark in engine.marks for path in (config, socket))
    )
