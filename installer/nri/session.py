"""A connection of the plugin with an engine: received bytes lead to replies and news.

This module has no socket and no clock: plugin.py passes received bytes in and sends the replies. Every
answer comes from memory, for all pods and containers of the node wait while a plugin thinks.

The first part finds the CDI devices that a pod asks for, and decides whether the pod may have them. Anybody
who may create a pod chooses its annotations. So a namespace gets a kind of device only if the administrator
of the node allows this, and every other request is an error: a container never starts without the devices
that its pod asks for.

The second part is NRI as bytes: frames of the mux, messages of ttrpc, and tables of the needed messages. The
field numbers are the same from NRI 0.2 to 0.12 (pkg/api/api.proto of NRI and ttrpc's request.proto,
engine-facts.md#nri-fields). Fields outside the tables are skipped when received, and never sent. Bytes that
are not NRI are refused with a sentence.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from installer.errors import InstallerError, Option, Remedy
from installer.model import protobuf
from installer.model.nri import DEVICE, Allowed, Identity, Missed, refuse_dropping
from installer.model.protobuf import Schema, pack

# The annotations of NVIDIA's plugin, read in the same order: only the first annotation of a pod counts.
FOR_CONTAINER: Final = "nvidia.cdi.k8s.io/container."
FOR_POD: Final = ("nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io")
# Our annotation of each container with devices, by which a restarted plugin finds the missed containers.
GIVEN: Final = "toolkit-installer.nri/devices"

# Limits of a tenant's text in the log: an annotation has up to 256 KiB.
_SHOWN: Final = 80
_NAMED: Final = 10
_WISHES: Final = 64  # annotations of a pod that are kept until all containers are known


def shorten(text: str) -> str:
    """Return a tenant's text as logged."""
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}..."


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return a tenant's names as logged."""
    logged = [shorten(name) for name in names[:_NAMED]]
    more = len(names) - _NAMED
    if more > 0:
        logged.append(f"... {more} more")
    return logged


class RefusedError(InstallerError):
    """A container must not be created: the request of the pod is wrong."""

    usual = "nri-refused"


class ForbiddenError(RefusedError):
    """A pod asks for a device forbidden to the namespace."""


def requested_devices(
    pod: Mapping[str, Any], container: Mapping[str, Any], allowed: Iterable[Allowed]
) -> tuple[str, ...]:
    """Return the CDI devices for a container, each once.

    Raises:
        RefusedError: the annotation is wrong, or the namespace may not ask for a device.
    """
    key = requested_by(pod, container)
    if key is None:
        return ()
    value = pod["annotations"][key]
    where = f"container {container['name']} of pod {pod['namespace']}/{pod['name']}"
    if _is_wrong(key):
        raise RefusedError(
            f"create {where} (its annotation {shorten(key)} is none that asks for devices)",
            remedy=f"write {FOR_CONTAINER}NAME or {' or '.join(FOR_POD)}, or remove the annotation",
        )

    stripped = [name.strip() for name in value.split(",")]
    names = tuple(dict.fromkeys(name for name in stripped if name))
    if not names:
        remedy = "write VENDOR/CLASS=NAME there, or remove the annotation"
        raise RefusedError(f"create {where} (its annotation {key} names no device)", remedy=remedy)

    kinds = {each.kind for each in allowed if each.namespace == pod["namespace"]}
    for name in names:
        device = DEVICE.fullmatch(name)
        if device is None:
            raise RefusedError(
                f"create {where} (its annotation {key} asks for {shorten(name)!r}, which is no CDI device)",
                remedy="write VENDOR/CLASS=NAME there, several with commas",
            )
        if device["kind"] not in kinds:
            wanted = Option("nri-allow", f"{pod['namespace']}={shorten(device['kind'])}")
            raise ForbiddenError(
                f"create {where} (its annotation {key} asks for {shorten(name)}: its namespace may not)",
                remedy=Remedy("give the plugin ", wanted, " if it should, or remove the annotation"),
            )
    return names


def requested_by(pod: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    """Find the pod's annotation for a container, wrong annotations first; None without any."""
    annotations: Mapping[str, str] = pod["annotations"]
    for key in annotations:
        if _is_wrong(key):
            return key
    for key in (f"{FOR_CONTAINER}{container['name']}", *FOR_POD):
        if key in annotations:
            return key
    return None


def _is_wrong(key: str) -> bool:
    """Tell whether an annotation has the prefix of NVIDIA's plugin, but asks for nothing."""
    return key.startswith(f"{FOR_POD[1]}/") and not (key in FOR_POD or key.startswith(FOR_CONTAINER))


def may_ask(annotations: Iterable[str]) -> bool:
    """Tell whether annotations of a pod may ask for a container of the pod."""
    return any(key.partition("/")[0] == FOR_POD[1] for key in annotations)


def keep_wishes(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a pod to the annotations with requests for devices, shortened as for the log.

    A node has 110 pods of 256 KiB each, and with an emoji a text takes four times its length in memory.
    """
    for_pod = []
    for_container = []
    for key in pod["annotations"]:
        if key.startswith(FOR_CONTAINER):
            for_container.append(key)
        elif key.partition("/")[0] == FOR_POD[1]:
            for_pod.append(key)
    kept = [*for_pod, *for_container][:_WISHES]  # first the annotations for every container
    return {**pod, "annotations": {key: shorten(pod["annotations"][key]) for key in kept}}


# The two connections of the mux on the socket: the engine asks on the first, the plugin on the second.
PLUGIN: Final = 1
RUNTIME: Final = 2
REQUEST: Final = 1
RESPONSE: Final = 2
MAX_MESSAGE_BYTES: Final = 4 << 20  # ttrpc's own limit
# Go's side reads into a buffer of this size: one frame with a byte more breaks the connection, and the
# container starts without its device. No document says so (engine-facts.md#nri-frames).
MAX_PAYLOAD_BYTES: Final = 4096
_MUX: Final = struct.Struct(">II")
_TTRPC: Final = struct.Struct(">IIBB")


class WireError(InstallerError):
    """The engine sent bytes other than NRI."""

    usual = "nri-failed"

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"understand the engine over NRI ({problem})", remedy="report it with the version of the engine"
        )


class Message(NamedTuple):
    """A message of ttrpc on a connection of the mux."""

    connection: int
    stream: int
    kind: int
    content: bytes


def encoded(message: Message) -> bytes:
    """Return a message as frames, each short enough for the other side."""
    whole = _TTRPC.pack(len(message.content), message.stream, message.kind, 0) + message.content
    frames = bytearray()
    for start in range(0, len(whole), MAX_PAYLOAD_BYTES):
        payload = whole[start : start + MAX_PAYLOAD_BYTES]
        frames += _MUX.pack(message.connection, len(payload)) + payload
    return bytes(frames)


class Messages:
    """The received bytes of a socket, cut into messages; frames of an unknown connection are dropped."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._connections = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def of(self, content: bytes) -> Iterator[Message]:
        """Yield the messages completed by ``content``.

        Raises:
            WireError: a frame or a message is too long.
        """
        self._bytes += content
        for (number, _), payload in _cut(self._bytes, _MUX, 1, MAX_MESSAGE_BYTES + _TTRPC.size, "frame"):
            if number in self._connections:
                buffer = self._connections[number]
                buffer += payload
                for (_, stream, kind, _), whole in _cut(buffer, _TTRPC, 0, MAX_MESSAGE_BYTES, "message"):
                    yield Message(number, stream, kind, whole)


def _cut(
    buffer: bytearray, header: struct.Struct, size_index: int, max_size: int, unit: str
) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Remove each complete unit from ``buffer``; yield the fields of the header, and the content.

    Args:
        buffer: the received bytes.
        header: the format of the header.
        size_index: the index of the content's size among the header's fields.
        max_size: the largest size allowed.
        unit: the unit's name for errors.
    """
    while len(buffer) >= header.size:
        fields = header.unpack_from(buffer)
        size = fields[size_index]
        if size > max_size:
            raise WireError(f"a {unit} of {size} bytes")
        end = header.size + size
        if len(buffer) < end:
            return
        content = bytes(buffer[header.size : end])
        del buffer[:end]
        yield fields, content


def unpack(schema: Schema, content: bytes) -> dict[str, Any]:
    """Return the fields of a message named by ``schema``.

    Raises:
        WireError: the content is no message of this schema.
    """
    try:
        return protobuf.unpack(schema, content)
    except ValueError as error:
        raise WireError(str(error)) from error


PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"

# ttrpc
ASKED: Final[Schema] = {1: ("service", str), 2: ("method", str), 3: ("payload", bytes)}
STATUS: Final[Schema] = {1: ("code", int), 2: ("message", str)}
ANSWERED: Final[Schema] = {1: ("status", STATUS), 2: ("payload", bytes)}

# Registration
REGISTER: Final[Schema] = {1: ("name", str), 2: ("index", str)}
CONFIGURE: Final[Schema] = {2: ("engine", str), 3: ("version", str)}
CONFIGURED: Final[Schema] = {2: ("events", int)}
# Bit n - 1 for event n. 0 would be all of them, which makes the plugin a validator on containerd 2.2 and
# fails every container of the node; a bit that the engine does not know ends the connection.
CREATE_CONTAINER_ALONE: Final = 1 << (4 - 1)

# Pods and containers
POD: Final[Schema] = {1: ("id", str), 2: ("name", str), 4: ("namespace", str), 6: ("annotations", dict)}
CONTAINER: Final[Schema] = {2: ("pod", str), 3: ("name", str), 4: ("state", int), 6: ("annotations", dict)}
STOPPED: Final = 4
SYNCHRONIZE: Final[Schema] = {1: ("pods", [POD]), 2: ("containers", [CONTAINER]), 3: ("more", int)}
SYNCHRONIZED: Final[Schema] = {2: ("more", int)}
CREATE: Final[Schema] = {1: ("pod", POD), 2: ("container", CONTAINER)}
ADJUSTMENT: Final[Schema] = {2: ("annotations", dict), 8: ("devices", [{1: ("name", str)}])}
CREATED: Final[Schema] = {1: ("adjust", ADJUSTMENT)}

# Codes of gRPC, which ttrpc has too.
INVALID_ARGUMENT: Final = 3
PERMISSION_DENIED: Final = 7
UNIMPLEMENTED: Final = 12
# Notices that newer and older engines send unasked: an empty answer is enough.
TOLD_ONLY: Final = frozenset(
    {
        "StateChange",
        "Shutdown",
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "RemoveContainer",
    }
)
FIRST_STREAM: Final = 1


class Configured(NamedTuple):
    """The engine has accepted the plugin, and has given a name and a version."""

    engine: str
    version: str


class Synchronized(NamedTuple):
    """The engine has listed all pods and containers: from now on the engine asks for each new container."""

    missed: list[Missed]


class Given(NamedTuple):
    """A container is created with devices."""

    pod: str
    container: str
    devices: tuple[str, ...]


# An event of a connection; the error is the reason for which a container is not created.
News: TypeAlias = Configured | Synchronized | Given | RefusedError


class Session:
    """The state of a connection; ``registered`` after the engine's list of pods and containers."""

    def __init__(self, identity: Identity, allowed: Sequence[Allowed]) -> None:
        self._identity = identity
        self._allowed = allowed
        self._messages = Messages()
        self.registered = False
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._containers: list[Mapping[str, Any]] = []
        self._methods: dict[str, Callable[[bytes], tuple[bytes, News | None]]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
        }

    def opening(self) -> bytes:
        """Return the plugin's registration: the first bytes to send."""
        index = self._identity.order.zfill(2)  # "must be 2 digits"
        payload = pack(REGISTER, {"name": self._identity.name, "index": index})
        request = {"service": "nri.pkg.api.v1alpha1.Runtime", "method": "RegisterPlugin", "payload": payload}
        content = pack(ASKED, request)
        return encoded(Message(RUNTIME, FIRST_STREAM, REQUEST, content))

    def hear(self, content: bytes) -> Iterator[tuple[bytes, News | None]]:
        """Yield, for each message completed by ``content``, the reply, to be sent at once, and the news.

        Raises:
            WireError: the bytes are not NRI.
            InstallerError: the engine refuses the plugin, or would drop its devices.
        """
        for message in self._messages.of(content):
            if message.connection == PLUGIN and message.kind == REQUEST:
                yield self._answer(message)
            elif message.connection == RUNTIME and message.kind == RESPONSE:
                status = unpack(ANSWERED, message.content)["status"]
                if status["code"]:
                    problem = f"register with the engine over NRI ({status['message']})"
                    remedy = Remedy("use another ", Option("nri-name"), " or ", Option("nri-index"))
                    raise InstallerError(problem, remedy=remedy, code="nri-failed")

    def _answer(self, message: Message) -> tuple[bytes, News | None]:
        """Return the reply to a request of the engine, and the news."""
        request = unpack(ASKED, message.content)
        service = request["service"]
        method = request["method"]
        call = self._methods.get(method) if service == PLUGIN_SERVICE else None

        answer: dict[str, Any] = {}
        news: News | None = None
        if call is not None:
            try:
                answer["payload"], news = call(request["payload"])
            except RefusedError as error:
                code = PERMISSION_DENIED if isinstance(error, ForbiddenError) else INVALID_ARGUMENT
                answer["status"] = {"code": code, "message": str(error)}
                news = error
        elif service != PLUGIN_SERVICE or method not in TOLD_ONLY:
            problem = f"{service}/{method} is not for this plugin"
            answer["status"] = {"code": UNIMPLEMENTED, "message": problem}

        content = pack(ANSWERED, answer)
        return encoded(Message(PLUGIN, message.stream, RESPONSE, content)), news

    def _configure(self, payload: bytes) -> tuple[bytes, News | None]:
        """Ask the engine for the creation of containers only; refuse a device-dropping engine."""
        request = unpack(CONFIGURE, payload)
        refuse_dropping(request["engine"], request["version"])
        answer = pack(CONFIGURED, {"events": CREATE_CONTAINER_ALONE})
        return answer, Configured(request["engine"], request["version"])

    def _synchronize(self, payload: bytes) -> tuple[bytes, News | None]:
        """Collect the engine's pods and containers from all parts of the list; find the missed containers."""
        request = unpack(SYNCHRONIZE, payload)
        for pod in request["pods"]:
            if may_ask(pod["annotations"]):
                self._pods[pod["id"]] = keep_wishes(pod)
        for container in request["containers"]:
            if container["state"] != STOPPED and GIVEN not in container["annotations"]:
                self._containers.append({"pod": container["pod"], "name": container["name"]})

        answer = pack(SYNCHRONIZED, {"more": request["more"]})
        if request["more"]:
            return answer, None

        missed = list(self._find_missed())
        self._pods = {}
        self._containers = []
        self.registered = True
        return answer, Synchronized(missed)

    def _find_missed(self) -> Iterator[Missed]:
        """Yield the containers without the devices requested by their pod."""
        for container in self._containers:
            pod = self._pods.get(container["pod"])
            if pod is None:
                continue
            key = requested_by(pod, container)
            if key is not None:
                yield Missed(
                    namespace=pod["namespace"],
                    pod=pod["name"],
                    container=container["name"],
                    asked=shorten(pod["annotations"][key]),
                )

    def _create(self, payload: bytes) -> tuple[bytes, News | None]:
        """Give a new container the devices in the pod's annotations."""
        try:
            request = unpack(CREATE, payload)
        except WireError as error:  # with an empty answer the container could start without its devices
            raise RefusedError(
                f"create a container ({error.problem})", remedy=error.remedy, code="nri-failed"
            ) from error
        pod = request["pod"]
        container = request["container"]
        names = requested_devices(pod, container, self._allowed)
        if not names:
            return b"", None
        annotations = {GIVEN: ",".join(shorten_names(names))}
        devices = [{"name": name} for name in names]
        answer = pack(CREATED, {"adjust": {"annotations": annotations, "devices": devices}})
        return answer, Given(f"{pod['namespace']}/{pod['name']}", container["name"], names)
