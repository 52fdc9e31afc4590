"""The effects by which engines differ: the questions on an engine's socket, and one check of a start.

What differs without an effect is a method of ``model.engine.Engine``. The protocols stand in apis.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from msgspec import Struct

from installer.engines.node_shell import Tools
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.effective import Answer
from installer.model.engine import EngineState, LoadError

RunScript: TypeAlias = Callable[[str], str]  # runs a script in a container, returns the script's output


class NotServedError(InstallerError):
    """Another program than the host's own engine answers the engine's API; ``reason`` names the program."""

    usual = "engine-unknown"

    def __init__(self, title: str, reason: str, *, remedy: str) -> None:
        super().__init__(f"configure {title} ({reason})", remedy=remedy)
        self.reason = reason


class KeptContainer(Struct, frozen=True):
    """A container kept by the engine after the end, with the runtime of the creation, also a default."""

    id: str
    name: str
    runtime: str
    running: bool
    restarting: bool = False  # the engine is about to start the container again; ``running`` is true, too


class EngineApi(ABC):
    """The protocol of an engine's socket. Each call has its own deadline.

    All calls raise InstallerError if the engine does not answer, or answers something unexpected.
    ``explain_failing_start`` is no call, and raises nothing.
    """

    greeting: bytes  # an engine answers this at once, before any question

    @abstractmethod
    def ask(self, socket: Path, *, timeout_s: float) -> Answer:
        """Ask an engine for the config in force and the version.

        Raises:
            NotServedError: another program answers.
            InstallerError: the engine gives no answer; the code may be "cri-disabled" or "cri-failed".
        """

    def list_pods(self, socket: Path, *, timeout_s: float) -> tuple[str, ...]:  # noqa: ARG002 - by default none
        """Return the ids of the pods of an engine; none for an engine without pods."""
        return ()

    def list_creating(self, socket: Path, *, timeout_s: float) -> tuple[str, ...]:  # noqa: ARG002 - by default none
        """List the ids of the containers that a restart of the engine would strand in state CREATED."""
        return ()

    def list_kept_containers(
        self,
        socket: Path,  # noqa: ARG002 - by default none
        *,
        timeout_s: float,  # noqa: ARG002
    ) -> tuple[KeptContainer, ...]:
        """List the containers that the engine may start again, the running containers included."""
        return ()

    def list_running_names(self, socket: Path, *, timeout_s: float) -> tuple[str, ...]:  # noqa: ARG002 - by default none
        """List the names of the running containers, for an engine whose stop may end them."""
        return ()

    def count_reloads(self, socket: Path, since_s: float, *, timeout_s: float) -> int:  # noqa: ARG002 - by default none
        """Count the reloads completed by an engine since a moment of the wall clock.

        An engine reloaded by a signal has to report the reload: nothing else proves the reload.
        """
        return 0

    def explain_failing_start(
        self,
        host: Host,  # noqa: ARG002 - by default unknown
        engine: EngineState,  # noqa: ARG002
        words: Sequence[str],  # noqa: ARG002
        config: PurePosixPath,  # noqa: ARG002
    ) -> LoadError | None:
        """Explain why an engine would not start again after systemd has stopped its unit.

        docker.service requires containerd.service: systemd stops dockerd along with containerd. If dockerd
        would not start again, its containers would stay down, so containerd is not restarted. This method
        runs the engine's own program, and is therefore no method of ``Engine``: the methods there are pure.

        Args:
            host: The node.
            engine: The engine to be stopped along with another engine, as far as known.
            words: The command line of the engine's process; () if unknown.
            config: The engine's root file.

        Returns:
            A reason that ends a sentence after "cannot", for example "start with /etc/docker/daemon.json
            (there is no storage-driver x)". None for an engine able to start, or if unknown.
        """
        return None

    @abstractmethod
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
        """Run a container of a new name for the block; yield the id, and a function that runs scripts."""

    @abstractmethod
    def remove_container(self, socket: Path, name: str, *, timeout_s: float) -> list[str]:
        """Remove all leftovers of a container of ``run_container``; describe each removed thing."""
