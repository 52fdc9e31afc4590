"""k3s and RKE2: at each start they find the toolkit by themselves and write the config of their containerd.

Their start: engine-facts.md#k3s-start.
"""

from collections.abc import Iterable
from pathlib import PurePosixPath
from types import MappingProxyType

from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.engines.containerd.engine import Containerd
from installer.model.engine import (
    CommandLine,
    ConfigFiles,
    Decision,
    DropIns,
    EffectiveConfig,
    Extras,
    Place,
    RuntimeEntry,
)


class K3s(Containerd):
    """k3s: it serves our runtime after its next start, and none of its configs is edited."""

    __slots__ = ()

    name = "k3s"
    title = "k3s"
    config = PurePosixPath("/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
    drop_ins = DropIns()
    default_key = ""
    config_markers = ("/rancher/", "/k3s/")
    built_in_runtime = "nvidia"
    has_dry_run = False
    templates = MappingProxyType({"config-v3.toml.tmpl": V3_PLUGIN, "config.toml.tmpl": V2_PLUGIN})
    inputs: tuple[PurePosixPath, ...] = (
        PurePosixPath("/etc/rancher/k3s/config.yaml"),
        PurePosixPath("/etc/rancher/k3s/registries.yaml"),
    )
    units: tuple[str, ...] = ("k3s.service", "k3s-agent.service")
    start_s = 120.0
    unit = "k3s.service"
    socket = PurePosixPath("/run/k3s/containerd/containerd.sock")
    cmdline = CommandLine(config=("--config", "-c"))
    state = Place(PurePosixPath("/run/k3s/containerd"), "--state", "state")
    data = None
    needs_handler_since = ()

    def propose(
        self, _files: ConfigFiles, _entries: tuple[RuntimeEntry, ...], _extras: Extras
    ) -> Iterable[Decision]:
        """Return one candidate that writes nothing."""
        return [Decision((), ("runc", "crun"))]

    def predict(self, _files: ConfigFiles) -> EffectiveConfig:
        """Return an empty config: k3s generates the config of its containerd at its start."""
        return EffectiveConfig({}, "")


class Rke2(K3s):
    """RKE2: as k3s, whose socket it shares, with its own paths and units."""

    __slots__ = ()

    name = "rke2"
    title = "RKE2"
    config = PurePosixPath("/var/lib/rancher/rke2/agent/etc/containerd/config.toml")
    inputs = (
        PurePosixPath("/etc/rancher/rke2/config.yaml"),
        PurePosixPath("/etc/rancher/rke2/registries.yaml"),
    )
    unit = "rke2-server.service"
    units = ("rke2-server.service", "rke2-agent.service")
