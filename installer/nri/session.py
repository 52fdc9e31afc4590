"""One connection of a plugin with an engine: what came in leads to what is answered, and to what is known.

No socket and no clock: whoever has them hands over bytes and sends what comes back. Everything is answered
from memory, for all pods and containers of the node wait while a plugin thinks.

First which CDI devices a pod asks for, and whether it may. Whoever may make a pod chooses its annotations. So
a namespace gets a kind of device only where the admin of the node has said so, and everything else is an
error: a container never starts without what its pod asks for.

Then NRI as bytes: frames of its mux, messages of ttrpc, and the tables of the messages that are needed. The
field numbers are the same from NRI 0.2 to 0.12 (pkg/api/api.proto of NRI and ttrpc's request.proto,
engine-facts.md#nri-fields). What is left out is skipped when it comes, and never sent. Whatever comes is
refused in a sentence where it is none of this.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from installer.errors import InstallerError, Option, Remedy
from installer.model import protobuf
from installer.model.nri import DEVICE, Allowed, Identity, Missed, refuse_dropping
from installer.model.protobuf import Schema, pack

# As NVIDIA's plugin reads them: the first that is there counts, alone.
FOR_CONTAINER: Final = "nvidia.cdi.k8s.io/container."
FOR_POD: Final = ("nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io")
# Ours, at each container that got its devices: so a plugin started anew knows which ones were missed.
GIVEN: Final = "toolkit-installer.nri/devices"

# So much of a tenant's text is logged: an annotation has up to 256 KiB.
_SHOWN: Final = 80
_NAMED: Final = 10
_WISHES: Final = 64  # annotations of one pod that are kept until all containers are known


def shorten(text: str) -> str:
    """Return as much of a tenant's text as is logged."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return as many of a tenant's names as are logged."""
    more = len(names) - _NAMED
    return [*map(shorten, names[:_NAMED]), *([f"... {more} more"] if more > 0 else [])]


class RefusedError(InstallerError):
    """A container may not be created as its pod asks."""

    usual = "nri-refused"


class ForbiddenError(RefusedError):
    """A pod asks for what its namespace may not have."""


def requested_devices(
    pod: Mapping[str, Any], container: Mapping[str, Any], allowed: Iterable[Allowed]
) -> tuple[str, ...]:
    """Return the CDI devices that a container is to get, each once; RefusedError: the request is wrong."""
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
    names = tuple(dict.fromkeys(name for each in value.split(",") if (name := each.strip())))
    if not names:
        remedy = "write VENDOR/CLASS=NAME there, or remove the annotation"
        raise RefusedError(f"create {where} (its annotation {key} names no device)", remedy=remedy)
    kinds = {allows.kind for allows in allowed if allows.namespace == pod["namespace"]}
    for name in names:
        found = DEVICE.fullmatch(name)
        if found is None:
            raise RefusedError(
                f"create {where} (its annotation {key} asks for {shorten(name)!r}, which is no CDI device)",
                remedy="write VENDOR/CLASS=NAME there, several with commas",
            )
        if found["kind"] not in kinds:
            wanted = Option("nri-allow", f"{pod['namespace']}={shorten(found['kind'])}")
            raise ForbiddenError(
                f"create {where} (its annotation {key} asks for {shorten(name)}: its namespace may not)",
                remedy=Remedy("give the plugin ", wanted, " if it should, or remove the annotation"),
            )
    return names


def requested_by(pod: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    """Return the annotation of a pod that asks for a container, a wrong one first; None without any."""
    keys = (*filter(_is_wrong, pod["annotations"]), f"{FOR_CONTAINER}{container['name']}", *FOR_POD)
    return next((key for key in keys if key in pod["annotations"]), None)


def _is_wrong(key: str) -> bool:
    return key.startswith(f"{FOR_POD[1]}/") and not (key in FOR_POD or key.startswith(FOR_CONTAINER))


def may_ask(annotations: Iterable[str]) -> bool:
    """Tell whether annotations of a pod may ask for one of its containers."""
    return any(key.partition("/")[0] == FOR_POD[1] for key in annotations)


def keep_wishes(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod with the annotations that ask for devices alone, and of those what is logged.

    A node has 110 pods of 256 KiB each, and with one emoji a text takes four times its length in memory.
    """
    asking = [key for key in pod["annotations"] if key.partition("/")[0] == FOR_POD[1]]
    asking.sort(key=lambda key: key.startswith(FOR_CONTAINER))  # those that count for every container first
    wishes = {key: shorten(pod["annotations"][key]) for key in asking[:_WISHES]}
    return {**pod, "annotations": wishes}


# The connections that share the socket: on one the engine asks, on the other the plugin.
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
    """What came is not what NRI says it is."""

    usual = "nri-failed"

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"understand the engine over NRI ({problem})", remedy="report it with the version of the engine"
        )


class Message(NamedTuple):
    """One message of ttrpc: the connection it came on, its stream, its type and what is in it."""

    connection: int
    stream: int
    kind: int
    content: bytes


def encoded(message: Message) -> bytes:
    """Return a message as frames, none of which is longer than the other side can read."""
    whole = _TTRPC.pack(len(message.content), message.stream, message.kind, 0) + message.content
    parts = (whole[at : at + MAX_PAYLOAD_BYTES] for at in range(0, len(whole), MAX_PAYLOAD_BYTES))
    return b"".join(_MUX.pack(message.connection, len(part)) + part for part in parts)


class Messages:
    """Cuts the bytes of one socket into messages; frames of an unknown connection are dropped."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._connections = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def of(self, content: bytes) -> Iterator[Message]:
        """Yield the messages that are whole with ``content``; WireError where one is too long."""
        self._bytes += content
        for (number, _), payload in _cut(self._bytes, _MUX, 1, MAX_MESSAGE_BYTES + _TTRPC.size, "frame"):
            if number in self._connections:
                waiting = self._connections[number]
                waiting += payload
                for (_, stream, kind, _), whole in _cut(waiting, _TTRPC, 0, MAX_MESSAGE_BYTES, "message"):
                    yield Message(number, stream, kind, whole)


def _cut(
    waiting: bytearray, header: struct.Struct, place: int, most: int, what: str
) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Take off each header that has come whole, with what it announces; its size stands at ``place``."""
    while len(waiting) >= header.size:
        words = header.unpack_from(waiting)
        end = header.size + words[place]
        if words[place] > most:
            raise WireError(f"a {what} of {words[place]} bytes")
        if len(waiting) < end:
            return
        content = bytes(waiting[header.size : end])
        del waiting[:end]
        yield words, content


def unpack(schema: Schema, content: bytes) -> dict[str, Any]:
    """Return the fields of ``schema`` that a message has, or raise WireError."""
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
# What newer and older engines tell a plugin without being asked, and what needs no words for an answer.
TOLD_ONLY: Final = frozenset(
    {
        *("StateChange", "Shutdown", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"),
        *("PostCreateContainer", "StartContainer", "PostStartContainer", "RemoveContainer"),
    }
)
FIRST_STREAM: Final = 1


class Configured(NamedTuple):
    """The engine has taken us, and this is what it calls itself."""

    engine: str
    version: str


class Synchronized(NamedTuple):
    """The engine has listed what exists: from now on it asks us for each container."""

    missed: list[Missed]


class Given(NamedTuple):
    """A container is created with devices."""

    pod: str
    container: str
    devices: tuple[str, ...]


# An error is why a container is not created.
News: TypeAlias = Configured | Synchronized | Given | RefusedError


class Session:
    """What is known of one connection; ``registered`` once the engine has listed what exists."""

    def __init__(self, identity: Identity, allowed: Sequence[Allowed]) -> None:
        self._identity, self._allowed = identity, allowed
        self._messages, self.registered = Messages(), False
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._containers: list[Mapping[str, Any]] = []
        self._methods: dict[str, Callable[[bytes], tuple[bytes, News | None]]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
        }

    def opening(self) -> bytes:
        """Return what a plugin says first."""
        index = self._identity.order.zfill(2)  # "must be 2 digits"
        payload = pack(REGISTER, {"name": self._identity.name, "index": index})
        asked = {"service": "nri.pkg.api.v1alpha1.Runtime", "method": "RegisterPlugin", "payload": payload}
        content = pack(ASKED, asked)
        return encoded(Message(RUNTIME, FIRST_STREAM, REQUEST, content))

    def hear(self, content: bytes) -> Iterator[tuple[bytes, News | None]]:
        """Yield for each message that is whole with ``content`` what to send, at once, and then what to tell.

        WireError where it is not NRI, InstallerError where the engine refuses us, or has no use for us.
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
        asked = unpack(ASKED, message.content)
        service, method = asked["service"], asked["method"]
        call = self._methods.get(method) if service == PLUGIN_SERVICE else None
        answer: dict[str, Any] = {}
        news: News | None = None
        if call is not None:
            try:
                answer["payload"], news = call(asked["payload"])
            except RefusedError as error:
                code = PERMISSION_DENIED if isinstance(error, ForbiddenError) else INVALID_ARGUMENT
                answer["status"], news = {"code": code, "message": str(error)}, error
        elif service != PLUGIN_SERVICE or method not in TOLD_ONLY:
            said = f"{service}/{method} is not for this plugin"
            answer["status"] = {"code": UNIMPLEMENTED, "message": said}
        content = pack(ANSWERED, answer)
        return encoded(Message(PLUGIN, message.stream, RESPONSE, content)), news

    def _configure(self, payload: bytes) -> tuple[bytes, News | None]:
        request = unpack(CONFIGURE, payload)
        refuse_dropping(request["engine"], request["version"])
        answer = pack(CONFIGURED, {"events": CREATE_CONTAINER_ALONE})
        return answer, Configured(request["engine"], request["version"])

    def _synchronize(self, payload: bytes) -> tuple[bytes, News | None]:
        """Gather what exists, in as many parts as it comes; only what may matter is kept."""
        request = unpack(SYNCHRONIZE, payload)
        for pod in request["pods"]:
            if may_ask(pod["annotations"]):
                self._pods[pod["id"]] = keep_wishes(pod)
        self._containers += [
            {"pod": each["pod"], "name": each["name"]}
            for each in request["containers"]
            if each["state"] != STOPPED and GIVEN not in each["annotations"]
        ]
        answer = pack(SYNCHRONIZED, {"more": request["more"]})
        if request["more"]:
            return answer, None
        missed = list[Missed]()
        for container in self._containers:
            pod = self._pods.get(container["pod"])
            if pod is not None and (key := requested_by(pod, container)) is not None:
                namespace, name, asked = pod["namespace"], container["name"], shorten(pod["annotations"][key])
                missed.append(Missed(namespace=namespace, pod=pod["name"], container=name, asked=asked))
        self._pods, self._containers, self.registered = {}, [], True
        return answer, Synchronized(missed)

    def _create(self, payload: bytes) -> tuple[bytes, News | None]:
        try:
            request = unpack(CREATE, payload)
        except WireError as error:  # an answer without devices could start it without what it asks for
            raise RefusedError(
                f"create a container ({error.problem})", remedy=error.remedy, code="nri-failed"
            ) from error
        pod, container = request["pod"], request["container"]
        names = requested_devices(pod, container, self._allowed)
        if not names:
            return b"", None
        marks, wishes = {GIVEN: ",".join(shorten_names(names))}, [{"name": name} for name in names]
        answer = pack(CREATED, {"adjust": {"annotations": marks, "devices": wishes}})
        return answer, Given(f"{pod['namespace']}/{pod['name']}", container["name"], names)
