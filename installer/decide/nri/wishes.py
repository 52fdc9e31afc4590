"""Which CDI devices a pod asks for, and whether it may: its annotations against a list of those allowed.

Whoever may make a pod chooses its annotations. So a namespace gets a kind of device only where the admin of
the node has said so, and everything else is an error: a container never starts without what its pod asks for.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from installer.decide.data import dataclass, field
from installer.decide.errors import InstallerError, Option, Remedy, UsageError

DEFAULT_SOCKET: Final = PurePosixPath("/var/run/nri/nri.sock")
# As NVIDIA's plugin reads them: the first that is there counts, alone.
FOR_CONTAINER: Final = "nvidia.cdi.k8s.io/container."
FOR_POD: Final = ("nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io")
# Ours, at each container that got its devices: so a plugin started anew knows which ones were missed.
GIVEN: Final = "toolkit-installer.nri/devices"

# What the CDI library takes (tags.cncf.io/container-device-interface/pkg/parser).
_KIND: Final = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?"
DEVICE: Final = re.compile(rf"(?P<kind>{_KIND})=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ALLOWED: Final = re.compile(rf"(?P<namespace>[a-z0-9]([a-z0-9-]*[a-z0-9])?)=(?P<kind>{_KIND})")
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}")  # NRI 0.12 takes no other
_INDEX: Final = re.compile(r"[0-9]{1,2}")
# Of what a tenant writes so much is told: an annotation has up to 256 KiB.
_SHOWN: Final = 80
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Allowed:
    """A namespace of Kubernetes whose pods may ask for the devices of one kind."""

    namespace: str
    kind: str

    @classmethod
    def of(cls, text: str) -> "Allowed":
        """Return what ``NAMESPACE=VENDOR/CLASS`` says.

        Raises:
            UsageError: it says something else.
        """
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

    Raises:
        UsageError: engines would refuse it.
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
class Missed:
    """A container that was created without us, and runs without what its pod asks for, in a few words."""

    namespace: str
    pod: str
    container: str
    asked: str


@dataclass(frozen=True, slots=True)
class Nri:
    """What the plugin is asked for: where the engine listens, who we are, and who gets what.

    ``beside`` says that ``run`` has it run beside itself.
    """

    socket: PurePosixPath = DEFAULT_SOCKET
    identity: Identity = field(default_factory=Identity)
    allowed: tuple[Allowed, ...] = ()
    beside: bool = False

    def refuse_idle(self) -> None:
        """Return where somebody may ask for something.

        Raises:
            UsageError: nobody may.
        """
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


def cut(text: str) -> str:
    """Return what is told of a text that a tenant has written."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def some(names: Sequence[str]) -> list[str]:
    """Return what is told of a list that a tenant has written."""
    more = len(names) - _NAMED
    return [*map(cut, names[:_NAMED]), *([f"... {more} more"] if more > 0 else [])]


class RefusedError(InstallerError):
    """A container may not be created as its pod asks; ``forbidden`` where another namespace might."""

    usual = "nri-refused"
    forbidden = False


class ForbiddenError(RefusedError):
    """A pod asks for what its namespace may not have."""

    forbidden = True


def devices(
    pod: Mapping[str, Any], container: Mapping[str, Any], allowed: Iterable[Allowed]
) -> tuple[str, ...]:
    """Return the CDI devices that a container is to get, each once; none where its pod does not ask.

    Raises:
        RefusedError: the request is wrong, or not allowed.
    """
    key = requested_by(pod, container)
    if key is None:
        return ()
    value = pod["annotations"][key]
    where = f"container {container['name']} of pod {pod['namespace']}/{pod['name']}"
    names = tuple(dict.fromkeys(name for each in value.split(",") if (name := each.strip())))
    if not names:
        raise RefusedError(
            f"create {where} (its annotation {key} names no device)",
            remedy="write VENDOR/CLASS=NAME there, or remove the annotation",
        )
    kinds = {allows.kind for allows in allowed if allows.namespace == pod["namespace"]}
    for name in names:
        found = DEVICE.fullmatch(name)
        if found is None:
            raise RefusedError(
                f"create {where} (its annotation {key} asks for {cut(name)!r}, which is no CDI device)",
                remedy="write VENDOR/CLASS=NAME there, several with commas",
            )
        if found["kind"] not in kinds:
            wanted = Option("nri-allow", f"{pod['namespace']}={cut(found['kind'])}")
            raise ForbiddenError(
                f"create {where} (its annotation {key} asks for {cut(name)}: its namespace may not)",
                remedy=Remedy("give the plugin ", wanted, " if it should, or remove the annotation"),
            )
    return names


def requested_by(pod: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    """Return the annotation of a pod that asks for a container; None where there is none."""
    keys = (f"{FOR_CONTAINER}{container['name']}", *FOR_POD)
    return next((key for key in keys if key in pod["annotations"]), None)


def asks(annotations: Iterable[str]) -> bool:
    """Tell whether annotations of a pod may ask for one of its containers."""
    return any(key in FOR_POD or key.startswith(FOR_CONTAINER) for key in annotations)
