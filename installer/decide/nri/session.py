"""One connection of a plugin with an engine: what came in leads to what is answered, and to what is known.

No socket and no clock: whoever has them hands over bytes and sends what comes back. Everything is answered
from memory, for all pods and containers of the node wait while a plugin thinks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.nri import messages
from installer.decide.nri.served import refuse_dropping
from installer.decide.nri.wire import (
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Message,
    Messages,
    WireError,
    encoded,
    pack,
    unpack,
)
from installer.decide.nri.wishes import (
    GIVEN,
    Allowed,
    Identity,
    Missed,
    RefusedError,
    asks,
    cut,
    devices,
    requested_by,
    some,
)

FIRST_STREAM: Final = 1


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


@dataclass(frozen=True, slots=True)
class Refused:
    """A container is not created."""

    error: RefusedError


News: TypeAlias = Configured | Synchronized | Given | Refused


@dataclass(frozen=True, slots=True)
class Turn:
    """What is to be sent, at once, and then what there is to tell."""

    reply: bytes = b""
    news: News | None = None


class Session:
    """What is known of one connection."""

    def __init__(self, identity: Identity, allowed: Sequence[Allowed]) -> None:
        self._identity, self._allowed = identity, allowed
        self._messages = Messages()
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
        payload = pack(messages.REGISTER, {"name": self._identity.name, "index": index})
        asked = {"service": messages.RUNTIME_SERVICE, "method": "RegisterPlugin", "payload": payload}
        return encoded(Message(RUNTIME, FIRST_STREAM, REQUEST, pack(messages.ASKED, asked)))

    def hear(self, content: bytes) -> Iterator[Turn]:
        """Yield a turn for each message that is whole with ``content``.

        Raises:
            WireError: it is not NRI.
            InstallerError: the engine refuses us, or has no use for us.
        """
        for message in self._messages.of(content):
            if message.connection == PLUGIN and message.kind == REQUEST:
                yield self._answer(message)
            elif message.connection == RUNTIME and message.kind == RESPONSE:
                self._taken(unpack(messages.ANSWERED, message.content)["status"])

    def _answer(self, message: Message) -> Turn:
        asked = unpack(messages.ASKED, message.content)
        answer, news = self._answered(asked["service"], asked["method"], asked["payload"])
        content = pack(messages.ANSWERED, answer)
        return Turn(encoded(Message(PLUGIN, message.stream, RESPONSE, content)), news)

    def _answered(self, service: str, method: str, payload: bytes) -> tuple[dict[str, Any], News | None]:
        if service == messages.PLUGIN_SERVICE and method in messages.TOLD_ONLY:
            return {}, None
        call = self._methods.get(method) if service == messages.PLUGIN_SERVICE else None
        if call is None:
            return _status(messages.UNIMPLEMENTED, f"{service}/{method} is not for this plugin"), None
        try:
            answer, news = call(payload)
        except RefusedError as error:
            code = messages.PERMISSION_DENIED if error.forbidden else messages.INVALID_ARGUMENT
            return _status(code, str(error)), Refused(error)
        return {"payload": answer}, news

    def _taken(self, status: Mapping[str, Any]) -> None:
        """Raise where the engine has refused to register us."""
        if status["code"]:
            raise InstallerError(
                f"register with the engine over NRI ({status['message']})",
                remedy=Remedy("look at ", Option("nri-name"), " and ", Option("nri-index")),
                code="nri-failed",
            )

    def _configure(self, payload: bytes) -> tuple[bytes, News | None]:
        told = unpack(messages.CONFIGURE, payload)
        refuse_dropping(told["engine"], told["version"])
        answer = pack(messages.CONFIGURED, {"events": messages.CREATE_CONTAINER_ALONE})
        return answer, Configured(told["engine"], told["version"])

    def _synchronize(self, payload: bytes) -> tuple[bytes, News | None]:
        """Gather what exists, in as many parts as it comes; only what may matter is kept."""
        told = unpack(messages.SYNCHRONIZE, payload)
        self._pods |= {pod["id"]: pod for pod in told["pods"] if asks(pod["annotations"])}
        self._containers += [
            {"pod": each["pod"], "name": each["name"]}
            for each in told["containers"]
            if each["state"] != messages.STOPPED and GIVEN not in each["annotations"]
        ]
        answer = pack(messages.SYNCHRONIZED, {"more": told["more"]})
        if told["more"]:
            return answer, None
        missed = tuple(self._missed())
        self._pods, self._containers = {}, []
        return answer, Synchronized(missed)

    def _missed(self) -> Iterator[Missed]:
        for container in self._containers:
            pod = self._pods.get(container["pod"])
            key = requested_by(pod, container) if pod is not None else None
            if pod is not None and key is not None:
                yield Missed(pod["namespace"], pod["name"], container["name"], cut(pod["annotations"][key]))

    def _create(self, payload: bytes) -> tuple[bytes, News | None]:
        try:
            told = unpack(messages.CREATE, payload)
        except WireError as error:  # an answer without devices could start it without what it asks for
            raise RefusedError(
                f"create a container ({error.problem})", remedy=error.remedy, code="nri-failed"
            ) from error
        pod, container = told["pod"], told["container"]
        names = devices(pod, container, self._allowed)
        if not names:
            return b"", None
        adjust = {
            "annotations": {GIVEN: ",".join(some(names))},
            "devices": [{"name": name} for name in names],
        }
        answer = pack(messages.CREATED, {"adjust": adjust})
        return answer, Given(f"{pod['namespace']}/{pod['name']}", container["name"], names)


def _status(code: int, message: str) -> dict[str, Any]:
    return {"status": {"code": code, "message": message}}
