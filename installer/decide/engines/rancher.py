"""k3s and RKE2: they look for the toolkit by themselves at each start, and write their whole config anew."""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.effect import Effect
from installer.decide.engines.model import Decision
from installer.decide.engines.row import Api, CommandLine, DropIns, Engine, Generated, ReloadMethod, State


def _row(name: str, title: str, units: tuple[str, ...]) -> Engine:
    return Engine(
        name=name,
        title=title,
        config=PurePosixPath(f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml"),
        drop_in=None,
        drop_in_dir=None,
        drop_ins=DropIns.NONE,
        socket=PurePosixPath("/run/k3s/containerd/containerd.sock"),
        unit=units[0],
        process="containerd",
        api=Api.CRI,
        cmdline=CommandLine(config=("--config", "-c")),
        state=State(PurePosixPath("/run/k3s/containerd"), "--state", "state"),
        reload=ReloadMethod.RESTART,
        default_key="",
        needs_handler=lambda _: True,
        edits=lambda *_: (Decision((), ("runc", "crun")),),
        effect=lambda _: Effect({}, ""),
        # engine-facts.md#k3s-start
        generated=Generated("nvidia", units, start_s=120.0, marks=("/rancher/", "/k3s/")),
    )


K3S: Final = _row("k3s", "k3s", ("k3s.service", "k3s-agent.service"))
RKE2: Final = _row("rke2", "RKE2", ("rke2-server.service", "rke2-agent.service"))
