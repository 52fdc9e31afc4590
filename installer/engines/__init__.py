"""The engines: each engine is a class in its own file, and a line of the table here.

Imports host, model and config_text. Begin with observe.py, then dry_run.py and reload.py.
"""

from pathlib import PurePosixPath
from typing import Final

from installer.engines.containerd.engine import Containerd
from installer.engines.crio.engine import Crio
from installer.engines.docker.engine import Docker
from installer.engines.k0s import K0s
from installer.engines.k3s import K3s, Rke2
from installer.engines.microk8s import MicroK8s
from installer.model.engine import Engine

CONTAINERD: Final = Containerd()  # also the program below Docker and the Kubernetes distributions
ALL: Final[tuple[Engine, ...]] = (Docker(), CONTAINERD, Crio(), K3s(), Rke2(), K0s(), MicroK8s())
ENGINES: Final = {engine.name: engine for engine in ALL}


def list_generating(process: str, config: PurePosixPath, socket: PurePosixPath) -> tuple[str, ...]:
    """List the engines with a generated config and with a mark in ``config`` or ``socket``."""
    names = []
    for engine in ALL:
        if engine.process != process:
            continue
        if any(marker in str(config) or marker in str(socket) for marker in engine.config_markers):
            names.append(engine.name)
    return tuple(names)
