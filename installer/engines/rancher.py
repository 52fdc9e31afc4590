"""k3s and RKE2: they look for the toolkit by themselves at each start, and write their whole config anew."""

from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines.containerd.config import CONTAINERD
from installer.model.effective import EffectiveConfig
from installer.model.engine_spec import CommandLine, Decision, DropIns, EngineSpec, Generated, State


def _row(name: str, title: str, units: tuple[str, ...]) -> EngineSpec:
    return replace(
        CONTAINERD,
        name=name,
        title=title,
        config=PurePosixPath(f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml"),
        drop_ins=DropIns(),
        socket=PurePosixPath("/run/k3s/containerd/containerd.sock"),
        unit=units[0],
        cmdline=CommandLine(config=("--config", "-c")),
        state=State(PurePosixPath("/run/k3s/containerd"), "--state", "state"),
        data=None,
        default_key="",
        needs_handler=lambda _: True,
        draft=lambda *_: (Decision((), ("runc", "crun")),),
        make_check=None,
        estimate=lambda _: EffectiveConfig({}, ""),
        relocate=lambda edits, _: edits,
        # engine-facts.md#k3s-start
        generated=Generated("nvidia", units, start_s=120.0, marks=("/rancher/", "/k3s/")),
    )


K3S: Final = _row("k3s", "k3s", ("k3s.service", "k3s-agent.service"))
RKE2: Final = _row("rke2", "RKE2", ("rke2-server.service", "rke2-agent.service"))
