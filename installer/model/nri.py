"""The options of the NRI plugin, the state that the plugin writes, and the engines that inject devices."""

import re
from pathlib import PurePosixPath
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict

from installer.errors import InstallerError, UsageError

DEFAULT_SOCKET: Final = PurePosixPath("/var/run/nri/nri.sock")
# The names that the CDI library accepts (tags.cncf.io/container-device-interface/pkg/parser).
_KIND: Final = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?"
DEVICE: Final = re.compile(rf"(?P<kind>{_KIND})=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ALLOWED: Final = re.compile(rf"(?P<namespace>[a-z0-9]([a-z0-9-]*[a-z0-9])?)=(?P<kind>{_KIND})")
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}")  # NRI 0.12 refuses other names
_INDEX: Final = re.compile(r"[0-9]{1,2}")


class Allowed(NamedTuple):
    """A namespace of Kubernetes with the right to devices of a single kind."""

    namespace: str
    kind: str

    @classmethod
    def of(cls, text: str) -> "Allowed":
        """Return the namespace and the kind of ``NAMESPACE=VENDOR/CLASS``.

        Raises:
            UsageError: the text has another form.
        """
        match = _ALLOWED.fullmatch(text)
        if match is None:
            remedy = "write NAMESPACE=VENDOR/CLASS, such as gpu-operator=management.nvidia.com/gpu"
            raise UsageError(f"allow {text!r} over NRI", remedy=remedy)
        return cls(match["namespace"], match["kind"])

    def __str__(self) -> str:
        return f"{self.namespace}={self.kind}"


class Identity(NamedTuple):
    """The name of a plugin for engines, and the index in the order of several plugins."""

    name: str = "toolkit-installer"
    order: str = "10"

    @classmethod
    def of(cls, name: str, order: str) -> "Identity":
        """Return an identity.

        Raises:
            UsageError: engines would refuse the name or the index.
        """
        if not _NAME.fullmatch(name):
            problem = f"call the plugin {name!r} (NRI takes letters, digits and _ . + - alone)"
            raise UsageError(problem, remedy="choose another --nri-name")
        if not _INDEX.fullmatch(order):
            raise UsageError(f"use {order!r} as --nri-index", remedy="give 0 to 99")
        return cls(name, order)


class Nri(NamedTuple):
    """The options of the plugin: the engine's socket, our identity, and the allowed namespaces."""

    socket: PurePosixPath = DEFAULT_SOCKET
    identity: Identity = Identity()
    allowed: tuple[Allowed, ...] = ()
    beside: bool = False  # ``run`` starts the plugin beside itself

    def at(self, socket: PurePosixPath) -> "Nri":
        """Return the same options with another socket."""
        return self._replace(socket=socket)

    def refuse_idle(self) -> None:
        """Refuse a plugin without an allowed namespace.

        Raises:
            UsageError: no namespace may ask for anything.
        """
        if not self.allowed:
            remedy = "give --nri-allow NAMESPACE=VENDOR/CLASS, such as gpu-operator=management.nvidia.com/gpu"
            raise UsageError("serve pods over NRI (none is allowed to ask for anything)", remedy=remedy)

    @property
    def lock(self) -> PurePosixPath:
        """The plugin's pidfile beside the socket: two plugins of one engine see the same directory."""
        return self.socket.with_name("toolkit-installer.pid")

    @property
    def state(self) -> PurePosixPath:
        """The plugin's state file beside the socket, for ``status``."""
        return self.socket.with_name("toolkit-installer.json")

    @property
    def staged_state(self) -> PurePosixPath:
        """The next state until the plugin renames the file: a killed plugin may leave the file."""
        return self.state.with_name(f"{self.state.name}.new")


class Missed(TypedDict):
    """A container created without the plugin, running without the devices of the annotations."""

    namespace: str
    pod: str
    container: str
    asked: str  # in a few words


def name_missed(missed: Missed) -> str:
    """Return the name of a container for a sentence."""
    return f"{missed['namespace']}/{missed['pod']}/{missed['container']}"


class PluginState(TypedDict):
    """The content of the state file: a plugin and its engine since a time."""

    registered: bool
    engine: str
    problem: str  # the reason for which the plugin is not registered
    since: str
    missed: list[Missed]  # the first few
    missed_in_all: int
    version: Literal[1]


UNSEEN: Final = PluginState(
    registered=False, engine="", problem="", since="", missed=[], missed_in_all=0, version=1
)


_Version: TypeAlias = tuple[int, int, int]
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
# The engines that inject devices, by their name in Configure: ranges of versions, the end excluded. Other
# versions drop devices without a word: they lack the field, or an injector of their own
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
    """Refuse an engine that would start containers without a plugin's devices.

    Raises:
        InstallerError: the engine drops devices, or its version is unknown.
    """
    match = _VERSION.match(text)
    if name not in INJECTS or match is None:
        reason = f"it is not known whether {name or 'an engine without a name'} {text} injects them"
    else:
        version = (int(match[1]), int(match[2]), int(match[3] or 0))
        for first, end in INJECTS[name]:
            if first <= version and (end is None or version < end):
                return
        reason = f"{name} {text} takes them and starts the container without them"
    raise InstallerError(f"give CDI devices by NRI ({reason})", remedy=_UPGRADE, code="nri-unusable")
