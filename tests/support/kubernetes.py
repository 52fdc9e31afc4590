"""Kubernetes' API as a pod meets it: nodes with taints, pods that come and go, patches."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.entry import PROJECT

KEY = "node-toolkit-installer/not-ready"
# For 127.0.0.1, with its key: of no use to anybody. Then its authority, which has no keyUsage.
CERTIFICATE = PROJECT / "tests/support/api.pem"
OURS = {"key": KEY, "effect": "NoSchedule"}
THEIRS = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
LABEL = "node-toolkit-installer"
TOKEN = "token"  # noqa: S105 - a test's


def pod(node: str, *, ready: bool = True, uid: str = "", **metadata: str) -> dict[str, Any]:
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"uid": uid or node, "labels": {"app.kubernetes.io/name": LABEL}, **metadata},
        "spec": {"nodeName": node},
        "status": {"conditions": conditions},
    }


def node(*taints: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"taints": list(taints)} if taints else {}}


@dataclass
class FakeApi:
    """Answers as the API's own documentation has it: watches, JSON patches with tests, Status on a refusal.

    A watch begins with what is there; an admin changes a node's taints ahead of our patch as often as
    ``meddled`` says.
    """

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    refuses: int = 0
    meddled: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    hangs_up: bool = False

    def tell(self, what: str, thing: dict[str, Any]) -> None:
        with self.changed:
            self.events.append({"type": what, "object": thing})
            self.changed.notify_all()

    def patch(self, name: str, changes: list[dict[str, Any]]) -> int:
        if self.meddled:
            self.meddled -= 1
            self.nodes[name]["spec"]["taints"].insert(0, THEIRS)
        taints = list(self.nodes[name]["spec"]["taints"])
        for change in changes:
            index = int(change["path"].split("/")[3])
            if change["op"] == "test" and taints[index]["key"] != change["value"]:
                return 422
            if change["op"] == "remove":
                del taints[index]
        self.nodes[name]["spec"]["taints"] = taints
        return 200


class Handler(BaseHTTPRequestHandler):
    api: FakeApi
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.api.calls.append(("GET", self.path))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._say(401, {"kind": "Status", "code": 401})
        elif self.api.refuses:
            self.api.refuses -= 1
            self._say(503, {"kind": "Status", "code": 503})
        elif "watch=true" in self.path:
            self._watch()
        else:
            found = self.api.nodes.get(name := self.path.rpartition("/")[2])
            self._say(200, found) if found else self._say(404, {"kind": "Status", "message": name})

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/json-patch+json"
        self.api.calls.append(("PATCH", self.path))
        changes = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._say(self.api.patch(self.path.rpartition("/")[2], changes), {"kind": "Status"})

    def _say(self, code: int, thing: dict[str, Any]) -> None:
        body = json.dumps(thing).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        told = 0
        while not self.api.hangs_up:
            with self.api.changed:
                while len(self.api.events) == told and not self.api.hangs_up:
                    self.api.changed.wait(10)
                new, told = self.api.events[told:], len(self.api.events)
            for line in (json.dumps(event).encode() + b"\n" for event in new):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.api.hangs_up = False
        self.wfile.write(b"0\r\n\r\n")
