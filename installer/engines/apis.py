"""The protocols of engines' sockets. A protocol is a class, and a line of the table at the end."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Final

from installer.engines import cri, verify_pods
from installer.engines.docker import api as dockerd
from installer.engines.docker import verify_containers
from installer.engines.docker.next_start import explain_failing_start
from installer.engines.engine_api import EngineApi, KeptContainer, RunScript
from installer.engines.node_shell import Tools
from installer.host import processes
from installer.host.files import Host
from installer.model.effective import Answer
from installer.model.engine import Engine, EngineState, LoadError


class DockerApi(EngineApi):
    """Docker's API over HTTP/1.1."""

    greeting = processes.HTTP_PING

    def ask(self, socket: Path, *, timeout_s: float) -> Answer:
        """Ask dockerd for its runtimes and settings."""
        return dockerd.ask_info(socket, timeout_s=timeout_s)

    def list_kept_containers(self, socket: Path, *, timeout_s: float) -> tuple[KeptContainer, ...]:
        """List all containers of dockerd: a stopped container stays until removed."""
        return dockerd.list_containers(socket, timeout_s=timeout_s)

    def list_running_names(self, socket: Path, *, timeout_s: float) -> tuple[str, ...]:
        """List the names of the running containers: without live-restore these end with dockerd."""
        return dockerd.list_running_names(socket, timeout_s=timeout_s)

    def count_reloads(self, socket: Path, since_s: float, *, timeout_s: float) -> int:
        """Return the number of dockerd's reload events since a moment of the wall clock."""
        return dockerd.reloads_since(socket, since_s, timeout_s=timeout_s)

    def explain_failing_start(
        self, host: Host, engine: EngineState, words: Sequence[str], config: PurePosixPath
    ) -> LoadError | None:
        """Explain why dockerd would not start again with the present config; None if dockerd would start."""
        return explain_failing_start(host, engine, words, config)

    def run_container(  # noqa: PLR0913 - a container has many sides
        self,
        socket: Path,
        name: str,
        runtime: str,
        tools: Tools,
        environment: Mapping[str, str],
        *,
        timeout_s: float,
    ) -> AbstractContextManager[tuple[str, RunScript]]:
        """Run a container of an empty image, with the node's shell mounted."""
        return verify_containers.docker_container(
            socket, name, runtime, tools, environment, timeout_s=timeout_s
        )

    def remove_container(self, socket: Path, name: str, *, timeout_s: float) -> list[str]:
        """Remove the container and its image."""
        return verify_containers.remove_containers(socket, name, timeout_s=timeout_s)


class CriApi(EngineApi):
    """CRI over HTTP/2: containerd and CRI-O."""

    greeting = processes.HTTP2_PREFACE

    def ask(self, socket: Path, *, timeout_s: float) -> Answer:
        """Ask the engine for its handlers and settings."""
        return cri.ask_status(socket, timeout_s=timeout_s)

    def list_pods(self, socket: Path, *, timeout_s: float) -> tuple[str, ...]:
        """Return the ids of the pods."""
        return cri.list_ids(socket, "ListPodSandbox", timeout_s=timeout_s)

    def list_creating(self, socket: Path, *, timeout_s: float) -> tuple[str, ...]:
        """Return the ids of the containers in state CREATED."""
        return cri.list_ids(socket, "ListContainers", cri.CREATED, timeout_s=timeout_s)

    def run_container(  # noqa: PLR0913 - a container has many sides
        self,
        socket: Path,
        name: str,
        runtime: str,
        tools: Tools,
        environment: Mapping[str, str],
        *,
        timeout_s: float,
    ) -> AbstractContextManager[tuple[str, RunScript]]:
        """Run a container of the image of its pod's sandbox, with the node's shell mounted."""
        return verify_pods.cri_container(socket, name, runtime, tools, environment, timeout_s=timeout_s)

    def remove_container(self, socket: Path, name: str, *, timeout_s: float) -> list[str]:
        """Remove the pods of a name, with their containers."""
        return verify_pods.remove_pods(socket, name, timeout_s=timeout_s)


# By the word of an engine's ``api``.
APIS: Final[Mapping[str, EngineApi]] = {"docker": DockerApi(), "cri": CriApi()}


def api_of(engine: Engine) -> EngineApi:
    """Return the protocol of an engine's socket."""
    return APIS[engine.api]
