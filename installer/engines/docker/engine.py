"""Docker as an engine."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from installer.engines.docker import config as docker_config
from installer.engines.docker import load
from installer.model.effective import EffectiveConfig, RuntimeEntry
from installer.model.engine import (
    CdiSupport,
    CommandLine,
    Configs,
    DryRunCommand,
    Engine,
    EngineState,
    Extras,
    LoadError,
    LoadInput,
    Place,
    Proposal,
    Route,
    RuntimeFlags,
)
from installer.model.files import File


class Docker(Engine):
    """dockerd takes up the runtimes of daemon.json on SIGHUP; the containers go on."""

    __slots__ = ()

    name = "docker"
    title = "Docker"
    config = PurePosixPath("/etc/docker/daemon.json")
    default_key = docker_config.DEFAULT
    cdi_key = (docker_config.FEATURES, docker_config.CDI)
    process = "dockerd"
    unit = "docker.service"
    socket = PurePosixPath("/var/run/docker.sock")
    api = "docker"
    has_socket_unit = True
    pidfile = PurePosixPath("/var/run/docker.pid")
    cmdline = CommandLine(
        config=docker_config.CONFIG_FLAGS,
        runtimes=RuntimeFlags("--default-runtime", "--add-runtime", "="),
        addresses=("-H", "--host"),
        # dockerd loses the runtimes of flags at each reload with runtimes in its config (20.10, 26.1, 28.5).
        conflicts={"--add-runtime": "which each reload with runtimes in its config undoes"},
    )
    lower_engine = "containerd"
    lower_socket = Place(PurePosixPath("/run/containerd/containerd.sock"), "--containerd", "containerd")
    gpus_hook = "nvidia-container-runtime-hook"
    started_programs = ("containerd", "runc", "docker-init", "docker-proxy", gpus_hook)
    reads_config_on_signal = True
    reload_verb = "reload"
    reload_event = "engine reloaded"
    # The containerd that dockerd starts where the node has none.
    state = Place(
        PurePosixPath("/run/docker/containerd/daemon"), "--exec-root", "exec-root", "containerd/daemon"
    )
    namespace = "moby"
    keeps_containers = True
    live_restore_key = "live-restore"
    data = Place(PurePosixPath("/var/lib/docker"), "--data-root", "data-root")
    cdi = CdiSupport(
        "Docker 28.2 has CDI switched on, 25 with features.cdi = true in daemon.json, restarted",
        reads=(((26, 1), None), ((0,), (0, 6, 0))),
    )

    def propose(
        self,
        state: EngineState,
        configs: Configs,
        entries: tuple[RuntimeEntry, ...],
        extras: Extras,
        _before: EffectiveConfig | None = None,
    ) -> Iterable[Proposal]:
        """Return the candidate for daemon.json."""
        return docker_config.propose(state, configs, entries, extras)

    def predict(self, state: EngineState, configs: Configs) -> EffectiveConfig:
        """Predict the config in force after a start with daemon.json."""
        return docker_config.predict(state, configs)

    def describe_dry_run(self, state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
        """Return ``dockerd --validate`` with the flags of the running dockerd."""
        return docker_config.describe_dry_run(state, texts)

    def read_status(self, status: Mapping[str, Any]) -> EffectiveConfig:
        """Return the config in force by dockerd's answer to ``/info``."""
        return docker_config.read_info(status)

    def find_route(
        self, state: EngineState, path: PurePosixPath, in_force: EffectiveConfig | None, target: File | None
    ) -> Route:
        """Find the text, or an intermediate text before: dockerd keeps the keys missing from a text."""
        dockerd = docker_config.DockerdModel(path, state.version, state.flags)
        return dockerd.find_route(in_force, target)

    def find_differences(
        self, serving: EffectiveConfig, wanted: EffectiveConfig
    ) -> Iterator[tuple[str, bool]]:
        """Find dockerd's runtimes defined otherwise by ``wanted``, true for an undefined runtime."""
        return docker_config.find_differences(serving, wanted)

    def find_load_errors(self, given: LoadInput) -> Iterable[LoadError]:
        """Find the errors by which dockerd ends at a reload, though ``--validate`` accepts the texts."""
        return load.find_load_errors(given)

    def describe_gpu_test(self, runtime: str) -> str:
        """Describe the ``docker run`` that shows the GPUs in a container."""
        return f"docker run --rm --runtime={runtime} --env NVIDIA_VISIBLE_DEVICES=all ubuntu nvidia-smi"
