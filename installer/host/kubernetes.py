"""Kubernetes' API as a pod reaches it, and the pods of a node by the directories of their logs."""

import errno
import io
import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.kernel import list_mounts

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPResponse, HTTPSConnection

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
READY: Final = Path("/dev/shm/untaint.ready")  # noqa: S108 - the pod is ours alone
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"
SILENT_S: Final = 300.0  # for a line of a watch: the API writes a bookmark about once a minute
ANSWER_S: Final = 10.0  # for a request and its answer
MAX_BYTES: Final = 2 << 20  # of an answer: a thousand Leases are 1 MB
MAX_VALUES: Final = 200_000  # likewise: a thousand Leases have 50,000
TOLD: Final = 4096  # characters of a refusal
JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
OK: Final = 200
CREATED: Final = 201
# NAMESPACE_NAME_UID, made right before the pod's sandbox (engine-facts.md#kubelet-pod-logs).
POD_LOGS: Final = PurePosixPath("/var/log/pods")
OWN_NAME: Final = "HOSTNAME"
# The kubelet mounts it from its own directory (engine-facts.md#kubelet-pod-logs).
HOSTS: Final = "/etc/hosts"
HOSTS_OF_POD: Final = re.compile("/pods/([^/]+)/etc-hosts$")
# The keys of the taint that keeps pods from a new node. By the prefix of the second the Cluster Autoscaler
# knows that the taint goes away; managed autoscalers (AKS, GKE) have no flag to name the first.
STARTUP_TAINTS: Final = (
    "node-toolkit-installer/not-ready",
    "startup-taint.cluster-autoscaler.kubernetes.io/node-toolkit-installer",
)


class RefusedError(InstallerError):
    """The API has refused a request; ``status`` is the HTTP status."""

    usual = "kubernetes-api"

    def __init__(self, problem: str, status: int) -> None:
        super().__init__(problem, remedy="see whether our service account has the right")
        self.status = status


class UnreachableError(InstallerError):
    """The API has not answered, or the answer is invalid."""

    usual = "kubernetes-api"


class UnauthorizedError(RefusedError):
    """The token is not valid, or not valid any more."""


class ForbiddenError(RefusedError):
    """Our service account lacks the right."""


class NotFoundError(RefusedError):
    """The object does not exist."""


class ConflictError(RefusedError):
    """Another client has changed, deleted or created the object since the last read."""


class BusyError(RefusedError):
    """The API has too many requests."""


REFUSALS: Final[Mapping[int, type[RefusedError]]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    429: BusyError,
}


class Reply(Struct, frozen=True):
    """An object from the API, with the API server's time of the answer, to the second."""

    content: dict[str, Any]
    server_s: float


class Api(Struct, frozen=True):
    """The address of the API; each call may raise RefusedError or, without an answer, UnreachableError."""

    host: str
    port: int
    account: Path  # the directory of our account's token, authority and namespace
    ready: Path = READY  # is there while the API lets us watch
    answer_s: float = ANSWER_S
    connect_s: float = ANSWER_S  # of answer_s, for the connection alone

    @classmethod
    def of_this_pod(cls) -> "Api":
        """Return the API of this pod's cluster.

        Raises:
            InstallerError: this process is in no pod.
        """
        host = os.environ.get(HOST, "")
        port = os.environ.get(PORT, "")
        if not host or not port.isdecimal() or not (ACCOUNT / "token").is_file():
            problem = f"find the Kubernetes API ({HOST}, {PORT} and {ACCOUNT}/token are not all there)"
            remedy = "run it in a pod, with a service account whose token is mounted"
            raise InstallerError(problem, remedy=remedy, code="kubernetes-api")
        return cls(host, int(port), ACCOUNT)

    @property
    def namespace(self) -> str:
        """The namespace of this pod."""
        return (self.account / "namespace").read_text().strip()

    def ask(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> "Reply":
        """Return the answer to a request, within ``answer_s`` and ``MAX_BYTES``.

        The API may have carried out a request without an answer.
        """
        with self._send(method, path, content) as (answer, _):
            return Reply(_object(_read(answer)), _server_s(answer.headers["Date"]))

    def patch(self, path: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """Change an object by a JSON patch; the API applies the whole patch or nothing."""
        with self._send("PATCH", path, changes, JSON_PATCH) as (answer, _):
            _read(answer)

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the existing objects, then each created or changed object, until the API ends the watch.

        The answer begins within ``answer_s``. Each line ends within ``SILENT_S`` and ``MAX_BYTES``.
        """
        self.ready.unlink(missing_ok=True)
        with self._send("GET", path) as (answer, connection):
            self.ready.touch()
            yield from read_events(_read_lines(answer, connection))

    @contextmanager
    def _send(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = JSON,
    ) -> Iterator[tuple["HTTPResponse", "_Bounded"]]:
        """Yield the answer to a request, and the connection: reading ends after ``answer_s`` in all."""
        body = None if content is None else json.dumps(content).encode()
        began_s = time.monotonic()
        connected_by = began_s + min(self.connect_s, self.answer_s)
        deadline = began_s + self.answer_s
        with (
            report_answer(f"{method} {path}"),
            self._connect(connected_by, deadline) as (connection, bounded),
        ):
            connection.request(method, path, body, self._headers(content_type if body else ""))
            answer = connection.getresponse()
            if answer.status not in {OK, CREATED}:
                raise _refusal(f"{method} {path}", answer.status, _read(answer))
            yield answer, bounded

    @contextmanager
    def _connect(
        self, connected_by: float, deadline: float
    ) -> Iterator[tuple["HTTPSConnection", "_Bounded"]]:
        """Yield a connection, made until ``connected_by``; each later wait ends at ``deadline``.

        Both are moments of time.monotonic().
        """
        from http.client import HTTPSConnection

        context = self._trust()
        with closing(_connect_to_any(_resolve(self.host, self.port, connected_by), connected_by)) as plain:
            plain.settimeout(_left_s(connected_by))
            with closing(context.wrap_socket(plain, server_hostname=self.host)) as secure:
                connection = HTTPSConnection(self.host, self.port, context=context)
                connection.sock = bounded = _Bounded(secure, deadline)
                yield connection, bounded

    def _headers(self, content_type: str) -> dict[str, str]:
        # Read anew each time: the kubelet exchanges the token long before it ends.
        headers = {"Authorization": f"Bearer {(self.account / 'token').read_text().strip()}", "Accept": JSON}
        if content_type:
            headers["Content-Type"] = content_type
        return headers

    def _trust(self) -> "ssl.SSLContext":
        import ssl

        trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        # Python 3.13 is strict by default and refuses authorities without keyUsage, which many clusters have.
        trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return trusted


class _Bounded:
    """A connection for http.client, which sends and receives until the deadline, and receives ``MAX_BYTES``.

    http.client limits the length and number of headers; ``MAX_BYTES`` limits the whole answer.
    """

    def __init__(self, connection: "ssl.SSLSocket", deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._received = 0

    def renew(self, seconds: float) -> None:
        """Allow ``seconds`` from now on, and ``MAX_BYTES`` more."""
        self._deadline = time.monotonic() + seconds
        self._received = 0

    def sendall(self, data: bytes) -> None:
        self._connection.settimeout(_left_s(self._deadline))
        self._connection.sendall(data)

    def receive_into(self, buffer: Any) -> int:
        self._connection.settimeout(_left_s(self._deadline))
        size = self._connection.recv_into(buffer)
        self._received += size
        if self._received > MAX_BYTES:
            raise OSError(errno.EMSGSIZE, f"an answer of more than {MAX_BYTES >> 20} MB")
        return size

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Received(self))

    def close(self) -> None:
        """Leave the connection open: http.client closes a connection before reading the answer."""


class _Received(io.RawIOBase):
    """The bytes that a connection receives."""

    def __init__(self, connection: _Bounded) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._connection.receive_into(buffer)


def _resolve(host: str, port: int, deadline: float) -> Sequence[tuple[str, int]]:
    """Return the addresses of a host until a deadline.

    Kubernetes gives pods an IP address, some clusters a name. The system's resolver has no deadline: for a
    name a thread asks the resolver, and a late answer is ignored.
    """
    with suppress(socket.gaierror):
        return _ask_resolver(host, port, socket.AI_NUMERICHOST)

    from concurrent.futures import Future
    from threading import Thread

    answer: Future[Sequence[tuple[str, int]]] = Future()

    def resolve() -> None:
        try:
            answer.set_result(_ask_resolver(host, port))
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    Thread(target=resolve, daemon=True).start()
    try:
        return answer.result(_left_s(deadline))
    except TimeoutError:
        raise TimeoutError(errno.ETIMEDOUT, f"the name {host} was not resolved in time") from None


def _ask_resolver(host: str, port: int, flags: int = 0) -> Sequence[tuple[str, int]]:
    rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(str(address[0]), int(address[1])) for _, _, _, _, address in rows]


def _connect_to_any(addresses: Sequence[tuple[str, int]], deadline: float) -> socket.socket:
    """Connect to the first address that accepts; each address gets an equal part of the remaining time."""
    problem = OSError("the API's name has no address")
    for tried, address in enumerate(addresses):
        share_s = _left_s(deadline) / (len(addresses) - tried)
        try:
            return socket.create_connection(address, share_s)
        except OSError as error:
            problem = error
    raise problem


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return left_s


def _read(answer: "HTTPResponse") -> bytes:
    # http.client asks for the memory of the whole length that an answer claims, unless that is limited.
    content = answer.read(MAX_BYTES)
    if answer.length:
        raise OSError("the answer ends early")
    return content


def _read_lines(answer: "HTTPResponse", connection: _Bounded) -> Iterator[bytes]:
    """Yield the lines of a watch, with an object each."""
    connection.renew(SILENT_S)
    while line := answer.readline():
        yield line
        connection.renew(SILENT_S)


def _refusal(asked: str, status: int, text: bytes) -> RefusedError:
    """Return the error for a refused request, by the HTTP status."""
    told = text.decode(errors="replace")
    with suppress(ValueError, RecursionError):
        told = str(_object(text).get("message", told))
    return REFUSALS.get(status, RefusedError)(f"{asked} ({status} {told[:TOLD]})", status)


def _server_s(date: str | None) -> float:
    """Return the moment of an answer's Date header.

    Raises:
        ValueError: the header is missing or invalid.
        OverflowError: UTC has no such year.
    """
    from email.utils import parsedate_to_datetime

    if date is None:
        raise ValueError("the answer has no Date")
    return parsedate_to_datetime(date).astimezone(UTC).timestamp()


@contextmanager
def report_answer(asked: str) -> Iterator[None]:
    """Turn an error of the block into an UnreachableError for the request ``asked``."""
    from http.client import HTTPException

    try:
        yield
    except (OSError, HTTPException, ValueError, OverflowError, RecursionError) as error:
        problem = f"{asked} (the Kubernetes API does not answer: {error})"
        remedy = "see whether the API server is well, and no network policy keeps this pod from it"
        raise UnreachableError(problem, remedy=remedy) from error


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a watch's events until the watch is over."""
    for line in lines:
        event = _object(line)
        seen = event.get("object")
        if event.get("type") == "ERROR":  # such as 410: what we have seen is too long ago
            return
        if event.get("type") in ("ADDED", "MODIFIED") and isinstance(seen, dict):
            yield seen


def _object(content: bytes) -> dict[str, Any]:
    # A value costs up to 100 bytes of memory, also an empty list. Each value follows one of these.
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"an answer of more than {MAX_VALUES} values")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError(f"no object: {content[:80]!r}")  # noqa: TRY004 - what came is wrong, not who called
    return found


def own_pod_name() -> str:
    """Return the name of this pod; "" outside a pod, the node's name in a pod on the node's network."""
    return os.environ.get(OWN_NAME, "")


def is_replica_made(host: Host, since_s: float) -> bool | None:
    """Tell whether another pod of our DaemonSet was made since a moment; None outside a pod."""
    uid = _own_pod_uid()
    name = own_pod_name()
    try:
        directories = host.names(POD_LOGS) if uid or name else ()
    except InstallerError:
        return None
    # Without a uid the name counts, which a pod of another namespace may have, too.
    by_uid = [each for each in directories if uid and each.endswith(f"_{uid}")]
    by_name = [each for each in directories if each.split("_")[1:-1] == [name]]
    own = next(iter(by_uid or by_name), None)
    if own is None:
        return None
    # The name of a pod is that of its DaemonSet and one more word.
    daemonset = own.rpartition("_")[0].rpartition("-")[0]
    alike = re.compile(re.escape(daemonset) + "-[^-_]*(_|$)")
    others = (each for each in directories if each != own and alike.match(each))
    return any(host.changed_s(POD_LOGS / each) > since_s for each in others)


def _own_pod_uid() -> str:
    """Return the uid of this pod, by the /etc/hosts that the kubelet mounts; "" outside a pod."""
    for point, directory in list_mounts():
        found = HOSTS_OF_POD.search(directory)
        if point == HOSTS and found:
            return found[1]
    return ""
