"""The engines: one row each, at the end of its own file."""

from typing import Final

from installer.decide.engines.containerd import CONTAINERD
from installer.decide.engines.crio import CRIO
from installer.decide.engines.docker import DOCKER
from installer.decide.engines.rancher import K3S, RKE2

ENGINES: Final = {engine.name: engine for engine in (DOCKER, CONTAINERD, CRIO, K3S, RKE2)}
