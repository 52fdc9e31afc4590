"""What the kubelet asks of an engine, over the socket of a node, without generated stubs."""

import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.engines.images import IMAGE
from tests.host.servers import message
from tests.support.waiting import PATIENCE_S, until

TIMEOUT_S = PATIENCE_S  # a busy machine was seen to take more than 20 s for a pod
NODE = 2  # NamespaceMode: pods without a network of their own need no CNI
CONTAINER = 1


class CriError(Exception):
    """The engine refused; ``code`` is gRPC's word, such as ``UNIMPLEMENTED`` or ``UNAVAILABLE``."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details


@dataclass(frozen=True, slots=True)
class Status:
    """The engine's own account; ``config`` is what it has loaded."""

    conditions: dict[str, bool]
    config: dict[str, Any]

    @property
    def runtimes(self) -> dict[str, Any]:
        """Return the configured handlers by name."""
        return self.config.get("containerd", {}).get("runtimes") or {}


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox; a container in it needs the config it was made from."""

    id: str
    config: bytes
    handler: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the node in a container; ``from_host`` shows mounts that the node makes there later."""

    local: str
    there: str
    read_only: bool = False
    from_host: bool = False

    def encoded(self) -> bytes:
        return message((1, self.local), (2, self.there), (3, self.read_only), (5, self.from_host))


@dataclass(frozen=True, slots=True)
class Container:
    """What a pod's manifest says of a container; ``log`` is a name below /run/podlogs.

    ``capabilities`` are all that is left after ALL was dropped, None the engine's own choice. ``confined`` is
    the engine's own seccomp profile, and no new privileges.
    """

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    image: str = IMAGE
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] | None = None
    log: str = ""
    pid: int = CONTAINER
    memory_limit: int = 0  # bytes, 0 for none
    read_only_root: bool = False
    capabilities: tuple[str, ...] | None = None
    confined: bool = False
    apparmor: bool = True
    selinux_type: str = ""
    privileged: bool = False
    name: str = ""
    devices: tuple[str, ...] = ()  # by their CDI names, as a kubelet hands them on

    def encoded(self) -> bytes:
        name = self.name or f"container-{uuid.uuid4().hex[:8]}"
        return message(
            (1, message((1, name))),
            (2, message((1, self.image))),
            *((3, word) for word in self.command),
            *((4, word) for word in self.args),
            *((6, pair) for pair in _pairs(self.env)),
            *((7, mount.encoded()) for mount in self.mounts),
            (11, self.log or f"{name}.log"),
            *((17, message((1, name))) for name in self.devices),
            (15, message((1, message((4, self.memory_limit))), (2, message(*self._security())))),
        )

    def _security(self) -> Iterator[tuple[int, int | str | bytes]]:
        yield 3, message((1, NODE), (2, self.pid))
        yield 7, self.read_only_root
        if self.privileged:
            yield 2, 1
        if self.capabilities is not None:
            yield 1, message(*((1, name) for name in self.capabilities), (2, "ALL"))
        if self.selinux_type:
            yield 4, message((3, self.selinux_type))
        if self.confined:
            yield 11, 1
            yield 15, message((1, 0))  # RuntimeDefault
        if not self.apparmor:
            yield 16, message((1, 1))  # Unconfined


class Cri:
    """A client of one socket; every call is a connection of its own, for engines restart."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def call(self, method: str, request: bytes = b"") -> bytes:
        """Call ``Service/Method`` of CRI v1, or ``/full.name.Service/Method``."""
        import grpc

        path = method if method.startswith("/") else f"/runtime.v1.{method}"
        options = [("grpc.default_authority", "localhost")]
        try:
            with grpc.insecure_channel(f"unix://{self._socket}", options=options) as channel:
                answer: bytes = channel.unary_unary(path)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise CriError(error.code().name, error.details() or "") from error
        return answer

    def wait(self) -> Status:
        """Return the Status once CRI knows the test image.

        systemd calls containerd started while CRI 1.6 still says "server is not initialized yet",
        and an import reaches CRI as an event, later.
        """

        def knows_the_image() -> bool:
            with suppress(CriError):
                return IMAGE.encode() in self.call("ImageService/ListImages")
            return False

        until(knows_the_image, lambda: "CRI never saw the test image")
        return self.status()

    def version(self) -> str:
        return _text(self.call("RuntimeService/Version"), 3)

    def status(self) -> Status:
        """Return the verbose Status; raises CriError UNIMPLEMENTED where CRI did not load."""
        conditions, info = {}, {}
        for field, value in _fields(self.call("RuntimeService/Status", message((1, 1)))):
            if field == 1:
                for _, condition in _fields(value):
                    conditions[_text(condition, 1)] = bool(dict(_fields(condition)).get(2, 0))
            elif field == 2:
                info[_text(value, 1)] = _text(value, 2)
        return Status(conditions, json.loads(info.get("config", "{}")))

    def run_pod(  # noqa: PLR0913 - a pod has many sides
        self,
        handler: str = "",
        name: str = "",
        *,
        pid: int = CONTAINER,
        privileged: bool = False,
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        """Run a pod on the node's network; an empty handler is the default runtime."""
        name = name or f"pod-{uuid.uuid4().hex[:8]}"
        security = message((1, message((1, NODE), (2, pid))), (6, privileged))
        config = message(
            (1, message((1, name), (2, f"uid-{name}"), (3, namespace))),
            (3, "/run/podlogs"),
            *((6, pair) for pair in _pairs(labels)),
            *((7, pair) for pair in _pairs(annotations)),
            (8, message((2, security))),
        )
        request = message((1, config), *([(2, handler)] if handler else []))
        return Pod(_text(self.call("RuntimeService/RunPodSandbox", request), 1), config, handler, name)

    def start_container(
        self,
        pod: Pod,
        *command: str,
        mounts: Mapping[str, str] | None = None,
        read_only: Collection[str] = (),
        **more: Any,
    ) -> str:
        """Create and start a container in ``pod`` and return its id; it sleeps unless told otherwise.

        ``mounts`` tells by a path in the container which one of the node it is, those ``read_only`` cannot be
        written; ``more`` is as in Container.
        """
        bound = tuple(Mount(here, there, here in read_only) for here, there in (mounts or {}).items())
        return self.start(pod, Container(command=command or ("/bin/sleep", "100000"), mounts=bound, **more))

    def create(self, pod: Pod, wanted: Container) -> str:
        return _text(self.call("RuntimeService/CreateContainer", self.creation(pod, wanted)), 1)

    def creation(self, pod: Pod, wanted: Container) -> bytes:
        return message((1, pod.id), (2, wanted.encoded()), (3, pod.config))

    def start(self, pod: Pod, wanted: Container) -> str:
        container = self.create(pod, wanted)
        self.call("RuntimeService/StartContainer", message((1, container)))
        return container

    def exec(self, container: str, *command: str) -> CompletedProcess[str]:
        request = message((1, container), *((2, word) for word in command), (3, TIMEOUT_S))
        answer = self.call("RuntimeService/ExecSync", request)
        code = dict(_fields(answer)).get(3, 0)
        return CompletedProcess(command, int(code), _text(answer, 1), _text(answer, 2))

    def stop_container(self, container: str, grace_s: int = 0) -> None:
        """Stop a container, after ``grace_s`` the hard way."""
        self.call("RuntimeService/StopContainer", message((1, container), (2, grace_s)))

    def container_state(self, container: str) -> tuple[int, int]:
        """Return the state of a container (1 runs, 2 has exited) and its exit code."""
        status = dict(_fields(self.call("RuntimeService/ContainerStatus", message((1, container)))))[1]
        said = dict(_fields(status))
        return int(said.get(3, 0)), int(said.get(7, 0))

    def remove_container(self, container: str) -> None:
        self.call("RuntimeService/RemoveContainer", message((1, container)))

    def remove_pod(self, pod: Pod) -> None:
        """Stop and remove a pod with all its containers."""
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            self.call(f"RuntimeService/{method}", message((1, pod.id)))

    def pods(self) -> dict[str, str]:
        """Return the handler of each ready pod by its id."""
        listed = [pod for field, pod in _fields(self.call("RuntimeService/ListPodSandbox")) if field == 1]
        ready = [pod for pod in listed if dict(_fields(pod)).get(3, 0) == 0]
        return {_text(pod, 1): _text(pod, 7) for pod in ready}


def _pairs(pairs: Mapping[str, str] | None) -> Iterator[bytes]:
    yield from (message((1, key), (2, value)) for key, value in (pairs or {}).items())


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while message[at] > 127:
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field; CRI's answers have varints and byte strings only."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if tag & 7 == 2:
            yield tag >> 3, message[at : at + value]
            at += value
        elif tag & 7 == 0:
            yield tag >> 3, value
        else:
            raise ValueError(f"wire type {tag & 7} in an answer of CRI")


def _text(message: bytes, field: int) -> str:
    found = dict(_fields(message)).get(field, b"")
    return bytes(found).decode()
