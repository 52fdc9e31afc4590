"""A node loses its startup taint when its toolkit has become ready, and no other taint, and nobody else's."""

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from installer.report.untaint import TRIES, find_ready_node, make_patch
from tests.support import preloaded
from tests.support.site import PROJECT
from tests.support.waiting import until

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


@contextmanager
def serving(api: FakeApi, directory: Path) -> Iterator[int]:
    """Serve until the block ends; ``directory`` becomes the one of the account. Yield the port."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"api": api}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    begin = "-----BEGIN CERTIFICATE-----"
    authority = begin + CERTIFICATE.read_text().rpartition(begin)[2]
    for name, text in (("token", f"{TOKEN}\n"), ("namespace", "gpu"), ("ca.crt", authority)):
        (directory / name).write_text(text)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def untainting(port: int, directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    # A context as Python 3.13 makes it: strict. The authority of these tests has no keyUsage, as that of many clusters.
    strict = "lambda **given: (made := plain(**given), setattr(made, 'verify_flags', made.verify_flags | ssl.VERIFY_X509_STRICT))[0]"
    program = (
        f"import ssl; plain = ssl.create_default_context; ssl.create_default_context = {strict}; "
        "from pathlib import Path; from installer.cli import log; from installer.host import supervision; "
        "from installer.host.kubernetes import Api; from installer.report import untaint as it; it.PAUSE_S = 0.2; supervision.block_signals(); log.configure('json'); "
        f"it.untaint(Api('127.0.0.1', {port}, Path('{directory}'), Path('{directory}/ready')), '{LABEL}')"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=preloaded.ENVIRONMENT, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def test_the_taint_goes_when_the_pod_becomes_ready(tmp_path: Path) -> None:
    api = FakeApi({"a": node(THEIRS, OURS), "b": node(OURS)})
    api.tell("ADDED", pod("a", ready=False))
    api.tell("ADDED", pod("b", deletionTimestamp="2026-11-22T12:00:00Z"))

    with serving(api, tmp_path) as port, untainting(port, tmp_path) as process:
        until(lambda: bool(api.calls))
        assert api.nodes["a"] == node(THEIRS, OURS)
        api.tell("MODIFIED", pod("a"))
        until(lambda: api.nodes["a"] == node(THEIRS))
        api.tell("BOOKMARK", {"metadata": {"resourceVersion": "7"}})
        api.tell("MODIFIED", pod("a"))
        process.terminate()
        assert process.wait(30) == 0
    assert api.nodes["b"] == node(OURS), "its pod ends"
    assert [call for call in api.calls if call[1].startswith("/api/v1/nodes/")] == [
        ("GET", "/api/v1/nodes/a"),
        ("PATCH", "/api/v1/nodes/a"),
    ]
    (watched,) = (path for _, path in api.calls if "watch=true" in path)
    assert watched.startswith(
        "/api/v1/namespaces/gpu/pods?labelSelector=app.kubernetes.io/name%3Dnode-toolkit-installer&"
    )


def test_it_is_ready_while_the_api_lets_it_watch_and_asks_again_where_that_goes_away(tmp_path: Path) -> None:
    api = FakeApi({"b": node(OURS)}, refuses=1)
    api.tell("ADDED", pod("gone"))
    api.tell("ADDED", pod("b"))
    (ready := tmp_path / "ready").touch()  # of a container before this one in the same pod

    with serving(api, tmp_path) as port, untainting(port, tmp_path):
        until(lambda: not ready.exists())
        until(ready.exists)
        until(lambda: not api.nodes["b"]["spec"]["taints"])

        api.refuses, api.hangs_up = 1, True
        with api.changed:
            api.changed.notify_all()
        until(lambda: not ready.exists())
        until(ready.exists)

    assert sum(path == "/api/v1/nodes/b" for _, path in api.calls) == 2, "not once more for each watch"


def test_what_others_do_to_the_taints_meanwhile_stays(tmp_path: Path) -> None:
    api = FakeApi({"a": node(OURS)}, meddled=2)
    api.tell("ADDED", pod("a"))

    with serving(api, tmp_path) as port, untainting(port, tmp_path):
        until(lambda: api.nodes["a"]["spec"]["taints"] == [THEIRS, THEIRS])


def test_a_node_whose_taints_others_change_again_and_again_is_tried_anew_after_a_pause(
    tmp_path: Path,
) -> None:
    api = FakeApi({"a": node(OURS)}, meddled=TRIES)
    api.tell("ADDED", pod("a"))

    with serving(api, tmp_path) as port, untainting(port, tmp_path):
        until(lambda: OURS not in api.nodes["a"]["spec"]["taints"])

    watches = [path for _, path in api.calls if "watch=true" in path]
    assert len(watches) == 2, "a pause, and a new watch"


def test_only_our_taint_goes() -> None:
    of_autoscaler = {**OURS, "key": "startup-taint.cluster-autoscaler.kubernetes.io/node-toolkit-installer"}
    api = FakeApi({"a": node(OURS, THEIRS, {**OURS, "effect": "NoExecute"}, of_autoscaler)})

    assert api.patch("a", make_patch(api.nodes["a"])) == 200
    assert api.nodes["a"] == node(THEIRS)
    assert [*map(make_patch, (node(), node(THEIRS)))] == [[], []]


def test_a_pod_that_no_node_has_yet_makes_no_node_ready() -> None:
    assert find_ready_node({"metadata": {}, "spec": {}}) == ""
