"""What the NRI plugin is asked for: where an engine listens, its own name, and which namespace gets what."""

import re
from pathlib import PurePosixPath
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict

from installer.errors import InstallerError, UsageError

DEFAULT_SOCKET: Final = PurePosixPath("/var/run/nri/nri.sock")
# What the CDI library takes (tags.cncf.io/container-device-interface/pkg/parser).
_KIND: Final = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?"
DEVICE: Final = re.compile(rf"(?P<kind>{_KIND})=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ALLOWED: Final = re.compile(rf"(?P<namespace>[a-z0-9]([a-z0-9-]*[a-z0-9])?)=(?P<kind>{_KIND})")
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}")  # NRI 0.12 takes no other
_INDEX: Final = re.compile(r"[0-9]{1,2}")


class Allowed(NamedTuple):
    """A namespace of Kubernetes whose pods may ask for the devices of one kind."""

    namespace: str
    kind: str

    @classmethod
    def of(cls, text: str) -> "Allowed":
        """Return what ``NAMESPACE=VENDOR/CLASS`` says. Raises UsageError: it says something else."""
        found = _ALLOWED.fullmatch(text)
        if found is None:
            remedy = "write NAMESPACE=VENDOR/CLASS, such as gpu-operator=management.nvidia.com/gpu"
            raise UsageError(f"allow {text!r} over NRI", remedy=remedy)
        return cls(found["namespace"], found["kind"])

    def __str__(self) -> str:
        return f"{self.namespace}={self.kind}"


class Identity(NamedTuple):
    """What an engine calls a plugin, and the index by whose order it asks several."""

    name: str = "toolkit-installer"
    order: str = "10"

    @classmethod
    def of(cls, name: str, order: str) -> "Identity":
        """Return an identity; UsageError where engines would refuse it."""
        if not _NAME.fullmatch(name):
            problem = f"call the plugin {name!r} (NRI takes letters, digits and _ . + - alone)"
            raise UsageError(problem, remedy="choose another --nri-name")
        if not _INDEX.fullmatch(order):
            raise UsageError(f"use {order!r} as --nri-index", remedy="give 0 to 99")
        return cls(name, order)


class Nri(NamedTuple):
    """What the plugin is asked for: where the engine listens, who we are, and who gets what."""

    socket: PurePosixPath = DEFAULT_SOCKET
    identity: Identity = Identity()
    allowed: tuple[Allowed, ...] = ()
    beside: bool = False  # ``run`` has it run beside itself

    def at(self, socket: PurePosixPath) -> "Nri":
        """Return the same plugin at another socket."""
        return self._replace(socket=socket)

    def refuse_idle(self) -> None:
        """Raise ``UsageError`` where no namespace may ask for anything."""
        if not self.allowed:
            remedy = "give --nri-allow NAMESPACE=VENDOR/CLASS, such as gpu-operator=management.nvidia.com/gpu"
            raise UsageError("serve pods over NRI (none is allowed to ask for anything)", remedy=remedy)

    @property
    def lock(self) -> PurePosixPath:
        """Beside the socket: two plugins that could ask the same engine see the same directory."""
        return self.socket.with_name("toolkit-installer.pid")

    @property
    def state(self) -> PurePosixPath:
        """Beside it, for ``status``."""
        return self.socket.with_name("toolkit-installer.json")


class Missed(TypedDict):
    """A container that was created without the plugin, and runs without what its pod asks for."""

    namespace: str
    pod: str
    container: str
    asked: str  # in a few words


def name_missed(missed: Missed) -> str:
    """Return how a sentence calls a container."""
    return f"{missed['namespace']}/{missed['pod']}/{missed['container']}"


class PluginState(TypedDict):
    """A plugin and its engine since a moment, as it stands in the file for ``status``."""

    registered: bool
    engine: str
    problem: str  # why it is not registered
    since: str
    missed: list[Missed]  # the first of them
    missed_in_all: int
    version: Literal[1]


UNSEEN: Final = PluginState(
    registered=False, engine="", problem="", since="", missed=[], missed_in_all=0, version=1
)


_Version: TypeAlias = tuple[int, int, int]
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
# By the name that an engine gives itself in Configure: from a version on, and up to the next that does not.
# The others drop devices without a word: they lack the field, or an injector of their own
# (engine-facts.md#nri-cdi).
INJECTS: Final[dict[str, tuple[tuple[_Version, _Version | None], ...]]] = {
    "containerd": (((1, 7, 30), (2, 0, 0)), ((2, 1, 0), None)),
    "cri-o": (((1, 34, 0), None),),
}
_UPGRADE: Final = (
    "upgrade to containerd 2.1 (or 1.7.30, with enable_cdi = true) or CRI-O 1.34, or let a device plugin "
    "ask by CRI (cdi-cri)"
)


def refuse_dropping(name: str, text: str) -> None:
    """Raise unless the engine injects what a plugin asks for; others start containers without it."""
    found = _VERSION.match(text)
    if name not in INJECTS or found is None:
        reason = f"it is not known whether {name or 'an engine without a name'} {text} injects them"
    else:
        number = (int(found[1]), int(found[2]), int(found[3] or 0))
        if any(least <= number and (end is None or number < end) for least, end in INJECTS[name]):
            return
        reason = f"{name} {text} takes them and starts the container without them"
    raise InstallerError(f"give CDI devices by NRI ({reason})", remedy=_UPGRADE, code="nri-unusable")
