"""One connection of a plugin with an engine: what came in leads to what is answered, and to what is known.

No socket and no clock: whoever has them hands over bytes and sends what comes back. Everything is answered
from memory, for all pods and containers of the node wait while a plugin thinks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from installer.errors import InstallerError, Option, Remedy
from installer.model.nri import Allowed, Identity
from installer.model.protobuf import pack
from installer.nri import wire
from installer.nri.allow import GIVEN, RefusedError, asks, cut, devices, refuse_dropping, requested_by, some

FIRST_STREAM: Final = 1


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
class Configured:
    """The engine has taken us, and this is what it calls itself."""

    engine: str
    version: str


@dataclass(frozen=True, slots=True)
class Synchronized:
    """The engine has told what exists: from now on it asks us for each container."""

    missed: tuple[Missed, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """A container is created with devices."""

    pod: str
    container: str
    devices: tuple[str, ...]


# An error is why a container is not created.
News: TypeAlias = Configured | Synchronized | Given | RefusedError


class Session:
    """What is known of one connection; ``registered`` once the engine has told what exists."""

    def __init__(self, identity: Identity, allowed: Sequence[Allowed]) -> None:
        self._identity, self._allowed = identity, allowed
        self._messages, self.registered = wire.Messages(), False
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._containers: list[Mapping[str, Any]] = []
        self._methods: dict[str, Callable[[bytes], tuple[bytes, News | None]]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
        }

    def opening(self) -> bytes:
        """Return what a plugin says first."""
        index = self._identity.index.zfill(2)  # "must be 2 digits"
        payload = pack(wire.REGISTER, {"name": self._identity.name, "index": index})
        asked = {"service": wire.RUNTIME_SERVICE, "method": "RegisterPlugin", "payload": payload}
        content = pack(wire.ASKED, asked)
        return wire.encoded(wire.Message(wire.RUNTIME, FIRST_STREAM, wire.REQUEST, content))

    def hear(self, content: bytes) -> Iterator[tuple[bytes, News | None]]:
        """Yield for each message that is whole with ``content`` what to send, at once, and then what to tell.

        Raises:
            WireError: it is not NRI.
            InstallerError: the engine refuses us, or has no use for us.
        """
        for message in self._messages.of(content):
            if message.connection == wire.PLUGIN and message.kind == wire.REQUEST:
                yield self._answer(message)
            elif message.connection == wire.RUNTIME and message.kind == wire.RESPONSE:
                _refuse_refused(wire.unpack(wire.ANSWERED, message.content)["status"])

    def _answer(self, message: wire.Message) -> tuple[bytes, News | None]:
        asked = wire.unpack(wire.ASKED, message.content)
        service, method = asked["service"], asked["method"]
        call = self._methods.get(method) if service == wire.PLUGIN_SERVICE else None
        answer: dict[str, Any] = {}
        news: News | None = None
        if call is not None:
            try:
                answer["payload"], news = call(asked["payload"])
            except RefusedError as error:
                code = wire.PERMISSION_DENIED if error.forbidden else wire.INVALID_ARGUMENT
                answer["status"], news = {"code": code, "message": str(error)}, error
        elif service != wire.PLUGIN_SERVICE or method not in wire.TOLD_ONLY:
            said = f"{service}/{method} is not for this plugin"
            answer["status"] = {"code": wire.UNIMPLEMENTED, "message": said}
        content = pack(wire.ANSWERED, answer)
        return wire.encoded(wire.Message(wire.PLUGIN, message.stream, wire.RESPONSE, content)), news

    def _configure(self, payload: bytes) -> tuple[bytes, News | None]:
        request = wire.unpack(wire.CONFIGURE, payload)
        refuse_dropping(request["engine"], request["version"])
        answer = pack(wire.CONFIGURED, {"events": wire.CREATE_CONTAINER_ALONE})
        return answer, Configured(request["engine"], request["version"])

    def _synchronize(self, payload: bytes) -> tuple[bytes, News | None]:
        """Gather what exists, in as many parts as it comes; only what may matter is kept."""
        request = wire.unpack(wire.SYNCHRONIZE, payload)
        self._pods |= {pod["id"]: pod for pod in request["pods"] if asks(pod["annotations"])}
        self._containers += [
            {"pod": each["pod"], "name": each["name"]}
            for each in request["containers"]
            if each["state"] != wire.STOPPED and GIVEN not in each["annotations"]
        ]
        answer = pack(wire.SYNCHRONIZED, {"more": request["more"]})
        if request["more"]:
            return answer, None
        missed = tuple(self._list_missed())
        self._pods, self._containers, self.registered = {}, [], True
        return answer, Synchronized(missed)

    def _list_missed(self) -> Iterator[Missed]:
        for container in self._containers:
            pod = self._pods.get(container["pod"])
            key = requested_by(pod, container) if pod is not None else None
            if pod is not None and key is not None:
                yield Missed(pod["namespace"], pod["name"], container["name"], cut(pod["annotations"][key]))

    def _create(self, payload: bytes) -> tuple[bytes, News | None]:
        try:
            request = wire.unpack(wire.CREATE, payload)
        except wire.WireError as error:  # an answer without devices could start it without what it asks for
            raise RefusedError(
                f"create a container ({error.problem})", remedy=error.remedy, code="nri-failed"
            ) from error
        pod, container = request["pod"], request["container"]
        names = devices(pod, container, self._allowed)
        if not names:
            return b"", None
        adjust = {
            "annotations": {GIVEN: ",".join(some(names))},
            "devices": [{"name": name} for name in names],
        }
        answer = pack(wire.CREATED, {"adjust": adjust})
        return answer, Given(f"{pod['namespace']}/{pod['name']}", container["name"], names)


def _refuse_refused(status: Mapping[str, Any]) -> None:
    """Raise where the engine has refused to register us."""
    if status["code"]:
        raise InstallerError(
            f"register with the engine over NRI ({status['message']})",
            remedy=Remedy("look at ", Option("nri-name"), " and ", Option("nri-index")),
            code="nri-failed",
        )
