"""A stand-in of Kubernetes' API server for Leases, Nodes, Pods and DaemonSets, which answers as a real one was recorded.

test_api_server.py compares each answer with recorded.json. A request for which there is no answer ends in
``unknown``, which a test finds empty.
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
from uuid import UUID

from installer.fleet import leases
from installer.host.kubernetes import Api
from tests.support.site import PROJECT

ANSWERS = json.loads((Path(__file__).parent / "answers.json").read_text())
# For 127.0.0.1, with its key: of no use to anybody. Then its authority, which has no keyUsage.
CERTIFICATE = PROJECT / "tests/support/api.pem"
NAMESPACE = "gpu"
USER = "system:serviceaccount:gpu:toolkit"
TOKEN = "token-1"  # noqa: S105 - a test's
# The users of requests; the last two are unknown to the server.
TOKENS = {
    "toolkit": TOKEN,
    "admin": "token-admin",
    "nobody": "token-nobody",
    "updater": "token-updater",
    "stranger": "token-stranger",
    "expired": "token-expired",
}
USERS = {TOKEN: USER} | {TOKENS[name]: name for name in ("admin", "nobody", "updater")}
# Verb and resource, and the names for which the right holds; None: for all.
TURNS = frozenset({"gpu-turns", "gpu-turn-0", "gpu-turn-1", "gpu-turn-2"})
RIGHTS: dict[str, dict[tuple[str, str], frozenset[str] | None]] = {
    USER: {
        ("list", "leases"): None,
        ("create", "leases"): None,
        ("get", "leases"): TURNS,
        ("update", "leases"): TURNS,
        ("get", "nodes"): None,
        ("get", "daemonsets"): frozenset({"toolkit"}),
    },
    "updater": {("get", "leases"): None, ("update", "leases"): None},
    "nobody": {},
}
GROUPS = {"leases": "coordination.k8s.io", "nodes": "", "pods": "", "daemonsets": "apps"}
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}
Key = tuple[str, str]  # resource and name


@dataclass
class ApiServer:
    """What the server holds, who may do what, and how it answers now."""

    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=lambda: dict(USERS))  # by their tokens
    refused: set[tuple[str, str]] = field(default_factory=set)  # a verb and a resource
    server_s: float = 1_795_780_800.0
    is_busy: bool = False
    swallows: set[str] = field(default_factory=set)  # verbs that are carried out and never answered
    slow_s: float = 0.0  # between two bytes of an answer
    delays_s: dict[str, float] = field(default_factory=dict)  # before an answer about a resource
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
        metadata.setdefault("uid", str(UUID(int=self.version)))
        if resource == "leases":
            metadata.setdefault("namespace", NAMESPACE)
            metadata.setdefault("creationTimestamp", "2026-11-28T12:00:00Z")
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
        if token not in self.users:
            return _refuse("unauthorized", resource, "")
        user = self.users[token]
        if not self._allows(user, verb, resource, name):
            return _forbid(user, verb, resource, name)
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
                return self._update(user, resource, name, body)
            case "delete" if resource == "leases":
                return self._delete(resource, name)
            case _:
                self.unknown.append(f"{method} {path}")
                return 501, "no answer is known"

    def _allows(self, user: str, verb: str, resource: str, name: str) -> bool:
        if (verb, resource) in self.refused:
            return False
        if user == "admin":
            return True
        names = RIGHTS[user].get((verb, resource), frozenset())
        return names is None or name in names

    def _delete(self, resource: str, name: str) -> tuple[int, Any]:
        uid = self.objects.pop((resource, name))["metadata"]["uid"]
        details = {"name": name, "group": GROUPS[resource], "kind": resource, "uid": uid}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return 200, {**status, "details": details}

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
        if thing["metadata"].get("resourceVersion"):
            return _refuse("created-with-version", resource, name)
        refusal = _validate(resource, name, thing)
        if refusal:
            return refusal
        self.put(resource, thing)
        return 201, self.objects[resource, name]

    def _update(self, user: str, resource: str, name: str, thing: dict[str, Any]) -> tuple[int, Any]:
        """Replace a Lease, or create the Lease: a PUT may do both."""
        if self.meddles:
            self.meddles.pop(0)()
        there = self.objects.get((resource, name))
        uid = thing["metadata"].get("uid")
        uid_there = there["metadata"]["uid"] if there else ""
        if uid and uid != uid_there:
            return _refuse("other-uid", resource, name, uid=uid, uid_there=uid_there)
        if not there and not self._allows(user, "create", resource, name):
            return _forbid(user, "create", resource, name)
        version = thing["metadata"].get("resourceVersion")
        if there and not version:
            problem = "Invalid value: 0: must be specified for an update"
            return _refuse("no-version", resource, name, field="metadata.resourceVersion", problem=problem)
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
        f"/api/v1/namespaces/{NAMESPACE}/",
        "/api/v1/",
    ):
        if path.startswith(prefix):
            return prefix
    raise AssertionError(path)


def _validate(resource: str, name: str, thing: dict[str, Any]) -> tuple[int, Any] | None:
    duration = thing.get("spec", {}).get("leaseDurationSeconds", 1)
    if duration > 0:
        return None
    problem = f"Invalid value: {duration}: must be greater than 0"
    return _refuse("invalid", resource, name, field="spec.leaseDurationSeconds", problem=problem)


def _forbid(user: str, verb: str, resource: str, name: str) -> tuple[int, dict[str, Any]]:
    where = "at the cluster scope" if resource == "nodes" else f'in the namespace "{NAMESPACE}"'
    return _refuse("forbidden", resource, name, user=user, verb=verb, where=where)


def _refuse(answer: str, resource: str, name: str, **words: str) -> tuple[int, dict[str, Any]]:
    """Return a refusal with the names of this request in the place of the published ones."""
    row = ANSWERS[answer]
    group = GROUPS[resource]
    qualified = f"{resource}.{group}" if group else resource
    what = f'{qualified} "{name}"' if name else qualified
    words |= {"what": what, "name": name, "namespace": NAMESPACE, "resource": resource, "group": group}
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status |= {"message": row["message"].format(**words), "code": row["code"]}
    if row["reason"]:
        status["reason"] = row["reason"]
    cause = {"reason": "FieldValueInvalid", "message": words.get("problem"), "field": words.get("field")}
    details = {"name": name, "group": group, "kind": resource, "causes": [cause]}
    if "object" in row.get("details", ()):
        details["kind"] = "Lease"
    if "details" in row:
        keys = ("kind" if key == "object" else key for key in row["details"])
        status["details"] = {key: details[key] for key in keys if details[key]}
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
        for resource, delay_s in server.delays_s.items():
            if f"/{resource}/" in self.path:
                server.stopped.wait(delay_s)
        text = str(answer).encode()
        if not isinstance(answer, str):
            text = json.dumps(answer, separators=(",", ":")).encode()
        text += b" " * server.padding
        self.send_response_only(code)
        self.send_header("Date", formatdate(server.server_s, usegmt=True))
        self.send_header("Content-Type", "application/json")
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


def settings_lease(**annotations: str) -> dict[str, Any]:
    named = {f"{leases.PREFIX}{key.replace('_', '-')}": text for key, text in annotations.items()}
    metadata = {"name": "gpu-turns", "labels": {leases.RELEASE: "gpu"}, "annotations": named}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
