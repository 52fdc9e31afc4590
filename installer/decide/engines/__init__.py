"""The engines: one row each."""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.effect import Effect
from installer.decide.engines import (
    containerd,
    containerd_config,
    containerd_effect,
    crio,
    docker,
    docker_reload,
)
from installer.decide.engines.model import Decision, Engine, Reload

ENGINES: Final = {
    engine.name: engine
    for engine in (
        Engine(
            name="docker",
            config=PurePosixPath("/etc/docker/daemon.json"),
            drop_in=None,
            drop_in_dir=None,
            socket=PurePosixPath("/var/run/docker.sock"),
            unit="docker.service",
            process="dockerd",
            reload=Reload.HUP,
            default_key=docker_reload.DEFAULT,
            needs_handler=lambda _: False,
            edits=docker.edits,
            effect=lambda files: docker_reload.effect(
                files.files.get(files.config), files.config, files.version, files.flags
            ),
        ),
        Engine(
            name="containerd",
            config=PurePosixPath("/etc/containerd/config.toml"),
            drop_in=None,
            drop_in_dir=None,
            socket=PurePosixPath("/run/containerd/containerd.sock"),
            unit="containerd.service",
            process="containerd",
            reload=Reload.RESTART,
            default_key=containerd_config.DEFAULT,
            needs_handler=lambda version: not version or version[0] > 1,
            edits=containerd.edits,
            effect=containerd_effect.effect,
            relocated=containerd_effect.relocated,
        ),
        Engine(
            name="crio",
            config=PurePosixPath("/etc/crio/crio.conf"),
            drop_in=PurePosixPath("/etc/crio/crio.conf.d/99-nvidia.toml"),
            drop_in_dir=PurePosixPath("/etc/crio/crio.conf.d"),
            socket=PurePosixPath("/var/run/crio/crio.sock"),
            unit="crio.service",
            process="crio",
            reload=Reload.RESTART,
            default_key=crio.DEFAULT,
            needs_handler=lambda _: True,
            edits=crio.edits,
            effect=crio.effect,
            finishes_calls=True,
        ),
        *(
            Engine(
                name=name,
                config=PurePosixPath(f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml"),
                drop_in=None,
                drop_in_dir=None,
                socket=PurePosixPath("/run/k3s/containerd/containerd.sock"),
                unit=units[0],
                process="containerd",
                reload=Reload.RESTART,
                default_key="",
                needs_handler=lambda _: True,
                edits=lambda *_: (Decision((), ("runc", "crun")),),
                effect=lambda _: Effect({}, ""),
                # pkg/agent/containerd/runtimes.go of k3s, which RKE2 is built on
                found_by="nvidia",
                units=units,
                start_s=120.0,
            )
            for name, units in (
                ("k3s", ("k3s.service", "k3s-agent.service")),
                ("rke2", ("rke2-server.service", "rke2-agent.service")),
            )
        ),
    )
}
