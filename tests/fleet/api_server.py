"""A stand-in of Kubernetes' API server for Leases, Nodes and DaemonSets: its refusals are those of answers.json.

An update of a Lease follows the server's source (engine-facts.md#lease-update-creates). A request for which there
is no answer ends in ``unknown``, which a test finds empty.
"""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from installer.host.kubernetes import Api
from tests.support.site import PROJECT

ANSWERS = json.loads((Path(__file__).parent / "answers.json").read_text())
# For 127.0.0.1, with its key: of no use to anybody. Then its authority, which has no keyUsage.
CERTIFICATE = PROJECT / "tests/support/api.pem"
NAMESPACE = "gpu"
USER = "system:serviceaccount:gpu:toolkit"
TOKEN = "token-1"  # noqa: S105 - a test's
GROUPS = {"leases": "coordination.k8s.io", "nodes": "", "daemonsets": "apps"}
VERBS = {"GET": "get", "POST": "create", "PUT": "update"}
Key = tuple[str, str]  # resource and name


@dataclass
class ApiServer:
    """What the server holds, who may do what, and how it answers now."""

    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    refused: set[tuple[str, str]] = field(default_factory=set)  # a verb and a resource
    server_s: float = 1_795_780_800.0
    is_busy: bool = False
    swallows: set[str] = field(default_factory=set)  # verbs that are carried out and never answered
    slow_s: float = 0.0  # between two bytes of an answer
    padding: int = 0  # bytes more in each answer
    version: int = 100
    calls: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    meddles: list[Any] = field(default_factory=list)  # called before an update, the first one first
    stopped: threading.Event = field(default_factory=threading.Event)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, resource: str, thing: dict[str, Any]) -> None:
        """Store an object as its owner does."""
        self.version += 1
        thing = deepcopy(thing)
        metadata = thing.setdefault("metadata", {})
        metadata |= {"resourceVersion": str(self.version)}
        metadata.setdefault("uid", f"uid-{self.version}")
        self.objects[resource, metadata["name"]] = thing

    def delete(self, resource: str, name: str) -> None:
        """Delete an object as its owner does."""
        del self.objects[resource, name]

    def lease(self, name: str) -> dict[str, Any]:
        return self.objects["leases", name]

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        """Return a code and a body. A text as the body is no object."""
        parts = urlsplit(path)
        resource, _, name = parts.path.removeprefix(_prefix(parts.path)).partition("/")
        verb = "list" if method == "GET" and not name else VERBS[method]
        self.calls.append(f"{verb} {resource}/{name}" if name else f"{verb} {resource}")
        if self.is_busy:
            return ANSWERS["too-many-requests"]["code"], ANSWERS["too-many-requests"]["text"]
        if token not in self.tokens:
            return _refuse("unauthorized", resource, "")
        if (verb, resource) in self.refused:
            where = "at the cluster scope" if resource == "nodes" else f'in the namespace "{NAMESPACE}"'
            return _refuse("forbidden", resource, name, user=USER, verb=verb, where=where)
        match verb:
            case "list":
                selector = parse_qs(parts.query)["labelSelector"][0]
                return 200, self._list(resource, *selector.split("="))
            case "get":
                found = self.objects.get((resource, name))
                return (200, found) if found else _refuse("not-found", resource, name)
            case "create":
                return self._create(resource, body)
            case "update" if resource == "leases":
                return self._update(resource, name, body)
            case _:
                self.unknown.append(f"{method} {path}")
                return 501, "no answer is known"

    def _list(self, resource: str, label: str, value: str) -> dict[str, Any]:
        """Return a list, whose items do not say their kind."""
        found = [thing for (kind, _), thing in self.objects.items() if kind == resource]
        items = [each for each in found if each["metadata"].get("labels", {}).get(label) == value]
        bare = [
            {key: part for key, part in item.items() if key not in {"kind", "apiVersion"}} for item in items
        ]
        listed = {"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1"}
        return {**listed, "metadata": {"resourceVersion": str(self.version)}, "items": bare}

    def _create(self, resource: str, thing: dict[str, Any]) -> tuple[int, Any]:
        name = thing["metadata"]["name"]
        if (resource, name) in self.objects:
            return _refuse("already-exists", resource, name)
        refusal = _validate(resource, name, thing)
        if refusal:
            return refusal
        self.put(resource, thing)
        return 201, self.objects[resource, name]

    def _update(self, resource: str, name: str, thing: dict[str, Any]) -> tuple[int, Any]:
        """Replace a Lease, or create the Lease: a PUT may do both."""
        if self.meddles:
            self.meddles.pop(0)()
        there = self.objects.get((resource, name))
        uid = thing["metadata"].get("uid")
        uid_there = there["metadata"]["uid"] if there else ""
        if uid and uid != uid_there:
            return _refuse("other-uid", resource, name, uid=uid, uid_there=uid_there)
        version = thing["metadata"].get("resourceVersion")
        if there and not version:
            return _refuse("no-version", resource, name)
        if there and version != there["metadata"]["resourceVersion"]:
            return _refuse("conflict", resource, name)
        refusal = _validate(resource, name, thing)
        if refusal:
            return refusal
        self.put(resource, thing)
        return (200 if there else 201), self.objects[resource, name]


def _prefix(path: str) -> str:
    """Return the part of a path before the resource."""
    for prefix in (
        f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/",
        "/api/v1/",
    ):
        if path.startswith(prefix):
            return prefix
    raise AssertionError(path)


def _validate(resource: str, name: str, thing: dict[str, Any]) -> tuple[int, Any] | None:
    duration = thing.get("spec", {}).get("leaseDurationSeconds", 1)
    if duration > 0:
        return None
    return _refuse("no-duration", resource, name, value=str(duration))


def _refuse(answer: str, resource: str, name: str, **words: str) -> tuple[int, dict[str, Any]]:
    """Return a refusal with the names of this request in the place of the published ones."""
    row = ANSWERS[answer]
    group = GROUPS[resource]
    qualified = f"{resource}.{group}" if group else resource
    what = f'{qualified} "{name}"' if name else qualified
    words |= {"what": what, "name": name, "namespace": NAMESPACE, "resource": resource, "group": group}
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status |= {"message": row["message"].format(**words), "reason": row["reason"], "code": row["code"]}
    details = {"name": name, "group": group, "kind": resource}
    if "details" in row:
        status["details"] = {key: details[key] for key in row["details"] if details[key]}
    return row["code"], status


class Handler(BaseHTTPRequestHandler):
    server_: ApiServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_PUT(self) -> None:
        self.do_POST()

    def _answer(self, body: Any) -> None:
        server = self.server_
        assert self.headers["Accept"] == "application/json"
        assert body is None or self.headers["Content-Type"] == "application/json"
        token = self.headers["Authorization"].removeprefix("Bearer ")
        with server.lock:
            code, answer = server.answer(self.command, self.path, token, body)
        if VERBS[self.command] in server.swallows:
            server.stopped.wait(30)
            return
        text = str(answer).encode()
        if not isinstance(answer, str):
            text = json.dumps(answer, separators=(",", ":")).encode()
        text += b" " * server.padding
        self.send_response_only(code)
        self.send_header("Date", formatdate(server.server_s, usegmt=True))
        self.send_header("Content-Type", ANSWERS["headers"]["Content-Type"])
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if server.slow_s:
            for byte in text:
                if server.stopped.wait(server.slow_s):
                    return
                self.wfile.write(bytes([byte]))
        else:
            self.wfile.write(text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up: their deadline has passed."""


@contextmanager
def serving(server: ApiServer, directory: Path) -> Iterator[Api]:
    """Serve until the block ends; ``directory`` becomes that of the pod's account."""
    http = _Server(("127.0.0.1", 0), type("Handler", (Handler,), {"server_": server}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    http.socket = context.wrap_socket(http.socket, server_side=True)
    begin = "-----BEGIN CERTIFICATE-----"
    authority = begin + CERTIFICATE.read_text().rpartition(begin)[2]
    for name, text in (("token", f"{TOKEN}\n"), ("namespace", NAMESPACE), ("ca.crt", authority)):
        (directory / name).write_text(text)
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield Api("127.0.0.1", http.server_port, directory)
    finally:
        server.stopped.set()
        http.shutdown()
        thread.join()
        http.server_close()
    assert server.unknown == []
