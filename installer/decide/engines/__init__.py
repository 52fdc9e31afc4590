"""The engines: one row each, at the end of its own file."""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.engines.containerd import CONTAINERD
from installer.decide.engines.crio import CRIO
from installer.decide.engines.docker import DOCKER
from installer.decide.engines.k0s import K0S
from installer.decide.engines.microk8s import MICROK8S
from installer.decide.engines.rancher import K3S, RKE2

ENGINES: Final = {engine.name: engine for engine in (DOCKER, CONTAINERD, CRIO, K3S, RKE2, K0S, MICROK8S)}


def generating(process: str, config: PurePosixPath, socket: PurePosixPath) -> tuple[str, ...]:
    """Return the engines that write their config themselves and have such a config or socket."""
    return tuple(
        engine.name
        for engine in ENGINES.values()
        if engine.generated is not None and engine.process == process
        if any(mark in str(path) for mark in engine.generated.marks for path in (config, socket))
    )
