"""What the NRI plugin is asked for and tells: its socket, its name, who gets what, what it has missed."""

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final, Literal

from installer.errors import UsageError

DEFAULT_SOCKET: Final = PurePosixPath("/var/run/nri/nri.sock")
# What the CDI library takes (tags.cncf.io/container-device-interface/pkg/parser).
_KIND: Final = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?"
DEVICE: Final = re.compile(rf"(?P<kind>{_KIND})=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ALLOWED: Final = re.compile(rf"(?P<namespace>[a-z0-9]([a-z0-9-]*[a-z0-9])?)=(?P<kind>{_KIND})")
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}")  # NRI 0.12 takes no other
_INDEX: Final = re.compile(r"[0-9]{1,2}")


@dataclass(frozen=True, slots=True)
class Allowed:
    """A namespace of Kubernetes whose pods may ask for the devices of one kind."""

    namespace: str
    kind: str

    @classmethod
    def of(cls, text: str) -> "Allowed":
        """Return what ``NAMESPACE=VENDOR/CLASS`` says. Raises UsageError: it says something else."""
        found = _ALLOWED.fullmatch(text)
        if found is None:
            raise UsageError(
                f"allow {text!r} over NRI",
                remedy="write NAMESPACE=VENDOR/CLASS, such as gpu-operator=management.nvidia.com/gpu",
            )
        return cls(found["namespace"], found["kind"])

    def __str__(self) -> str:
        return f"{self.namespace}={self.kind}"


@dataclass(frozen=True, slots=True)
class Identity:
    """What an engine calls a plugin, which it asks in ascending order of the index.

    UsageError where engines would refuse it.
    """

    name: str = "toolkit-installer"
    index: str = "10"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"call the plugin {self.name!r} (NRI takes letters, digits and _ . + - alone)",
                remedy="choose another --nri-name",
            )
        if not _INDEX.fullmatch(self.index):
            raise UsageError(f"use {self.index!r} as --nri-index", remedy="give 0 to 99")


@dataclass(frozen=True, slots=True)
class Nri:
    """What the plugin is asked for: where the engine listens, who we are, and who gets what."""

    socket: PurePosixPath = DEFAULT_SOCKET
    identity: Identity = field(default_factory=Identity)
    allowed: tuple[Allowed, ...] = ()
    beside: bool = False  # ``run`` has it run beside itself

    def at(self, socket: PurePosixPath) -> "Nri":
        """Return the same plugin at another socket."""
        return replace(self, socket=socket)

    def refuse_idle(self) -> None:
        """Raise ``UsageError`` where no namespace may ask for anything."""
        if not self.allowed:
            raise UsageError(
                "serve pods over NRI (none is allowed to ask for anything)",
                remedy="give --nri-allow NAMESPACE=VENDOR/CLASS, "
                "such as gpu-operator=management.nvidia.com/gpu",
            )

    @property
    def lock(self) -> PurePosixPath:
        """Beside the socket: two plugins that could ask the same engine see the same directory."""
        return self.socket.with_name("toolkit-installer.pid")

    @property
    def state(self) -> PurePosixPath:
        """Beside it, for ``status``."""
        return self.socket.with_name("toolkit-installer.json")


@dataclass(frozen=True, slots=True)
class Missed:
    """A container that was created without us, and runs without what its pod asks for, in a few words."""

    namespace: str
    pod: str
    container: str
    asked: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


@dataclass(frozen=True, slots=True)
class State:
    """A plugin and its engine since a moment; ``problem`` is why it is not registered."""

    registered: bool = False
    engine: str = ""
    problem: str = ""
    since: str = ""
    missed: tuple[Missed, ...] = ()
    missed_in_all: int = 0
    version: Literal[1] = 1
