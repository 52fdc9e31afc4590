"""Kubernetes' API as a pod reaches it, and the pods of a node by the directories of their logs."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from installer.errors import InstallerError
from installer.host.files import Host

if TYPE_CHECKING:
    from http.client import HTTPResponse

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
READY: Final = Path("/dev/shm/untaint.ready")  # noqa: S108 - the pod is ours alone
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"
SILENT_S: Final = 300.0  # the API bookmarks a watch about once a minute
JSON_PATCH: Final = "application/json-patch+json"
OK: Final = 200
# NAMESPACE_NAME_UID, made right before the pod's sandbox (engine-facts.md#kubelet-pod-logs).
POD_LOGS: Final = PurePosixPath("/var/log/pods")
OWN_NAME: Final = "HOSTNAME"


class RefusedError(InstallerError):
    """The API answered, and not with what was asked for; ``status`` is its code of HTTP."""

    usual = "kubernetes-api"

    def __init__(self, problem: str, status: int) -> None:
        super().__init__(problem, remedy="see whether our service account has the right")
        self.status = status


class Api(Struct, frozen=True):
    """Where the API answers; each call raises RefusedError, or another InstallerError for no answer."""

    host: str
    port: int
    account: Path  # the directory of our account's token, authority and namespace
    ready: Path = READY  # is there while the API lets us watch

    @classmethod
    def of_this_pod(cls) -> "Api":
        """Return the API of the cluster that this process is a pod of; raise where it is none."""
        host, port = os.environ.get(HOST, ""), os.environ.get(PORT, "")
        if not host or not port.isdecimal() or not (ACCOUNT / "token").is_file():
            problem = f"find the Kubernetes API ({HOST}, {PORT} and {ACCOUNT}/token are not all there)"
            remedy = "run it in a pod, with a service account whose token is mounted"
            raise InstallerError(problem, remedy=remedy, code="kubernetes-api")
        return cls(host, int(port), ACCOUNT)

    @property
    def namespace(self) -> str:
        """The namespace of this pod."""
        return (self.account / "namespace").read_text().strip()

    def get(self, path: str) -> dict[str, Any]:
        """Return an object."""
        with self._ask("GET", path) as answer:
            return _object(answer.read())

    def patch(self, path: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """Change an object by a JSON patch, which is applied whole or not at all."""
        with self._ask("PATCH", path, json.dumps(changes).encode()) as answer:
            answer.read()

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield each object that is there, and each that is made or changed, until the API ends the watch."""
        self.ready.unlink(missing_ok=True)
        with self._ask("GET", path) as answer:
            self.ready.touch()
            yield from read_events(answer)

    @contextmanager
    def _ask(self, method: str, path: str, body: bytes | None = None) -> Iterator["HTTPResponse"]:
        import ssl
        from http.client import HTTPSConnection

        # Read anew each time: the kubelet exchanges the token long before it ends.
        headers = {"Authorization": f"Bearer {(self.account / 'token').read_text().strip()}"}
        headers |= {"Accept": "application/json", **({"Content-Type": JSON_PATCH} if body else {})}
        trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        # Python 3.13 is strict by default and refuses authorities without keyUsage, which many clusters have.
        trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
        made = HTTPSConnection(self.host, self.port, timeout=SILENT_S, context=trusted)
        with closing(made) as connection, report_answer(f"{method} {path}"):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if answer.status != OK:
                text = answer.read(4096).decode(errors="replace")
                raise RefusedError(f"{method} {path} ({answer.status} {text})", answer.status)
            yield answer


@contextmanager
def report_answer(asked: str) -> Iterator[None]:
    """Raise what is wrong with an answer together with what was ``asked``."""
    from http.client import HTTPException

    try:
        yield
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        problem = f"{asked} (the Kubernetes API does not answer: {error})"
        remedy = "see whether the API server is well, and no network policy keeps this pod from it"
        raise InstallerError(problem, remedy=remedy, code="kubernetes-api") from error


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield each object that a watch tells was there, made or changed, until it tells that it is over."""
    for line in lines:
        event = _object(line)
        seen = event.get("object")
        if event.get("type") == "ERROR":  # such as 410: what we have seen is too long ago
            return
        if event.get("type") in ("ADDED", "MODIFIED") and isinstance(seen, dict):
            yield seen


def _object(content: bytes) -> dict[str, Any]:
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError(f"no object: {content[:80]!r}")  # noqa: TRY004 - what came is wrong, not who called
    return found


def is_replica_made(host: Host, since_s: float) -> bool | None:
    """Tell whether another pod of our DaemonSet was made since a moment; None where we are no pod."""
    name = os.environ.get(OWN_NAME, "")
    try:
        directories = host.names(POD_LOGS) if name else ()
    except InstallerError:
        return None
    own = next((each for each in directories if each.split("_")[1:-1] == [name]), None)
    if own is None:
        return None
    # The name of a pod is that of its DaemonSet and one more word.
    alike = re.compile(re.escape(f"{own.partition('_')[0]}_{name.rpartition('-')[0]}-") + "[^-_]*(_|$)")
    others = (each for each in directories if each != own and alike.match(each))
    return any(host.changed_s(POD_LOGS / each) > since_s for each in others)
