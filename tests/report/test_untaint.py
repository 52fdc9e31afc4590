"""A node loses its startup taint when its toolkit has become ready, and no other taint, and nobody else's."""

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from installer.report.untaint import find_ready_node, make_patch
from tests.support import preloaded
from tests.support.kubernetes import CERTIFICATE, LABEL, OURS, THEIRS, TOKEN, FakeApi, Handler, node, pod
from tests.support.site import PROJECT
from tests.support.waiting import until


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
def untainting(port: int, directory: Path) -> Iterator["subprocess.Popen[str]"]:
    # A context as Python 3.13 makes it: strict. The authority of these tests has no keyUsage, as that of many clusters.
    strict = "lambda **given: (made := plain(**given), setattr(made, 'verify_flags', made.verify_flags | ssl.VERIFY_X509_STRICT))[0]"
    program = (
        f"import ssl; plain = ssl.create_default_context; ssl.create_default_context = {strict}; "
        "from pathlib import Path; from installer.cli import log; from installer.host import supervision; "
        "from installer.host.kubernetes import Api; from installer.report import untaint as it; it.PAUSE_S = 0.2; supervision.block_signals(); log.configure(log.LogFormat.JSON); "
        f"it.untaint(Api('127.0.0.1', {port}, Path('{directory}'), Path('{directory}/ready')), '{LABEL}')"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


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
        process.send_signal(signal.SIGTERM)
        code = process.wait(10)

    assert code == 0
    assert api.nodes["b"] == node(OURS), "its pod ends"
    assert [call for call in api.calls if call[1].startswith("/api/v1/nodes/")] == [
        ("GET", "/api/v1/nodes/a"),
        ("PATCH", "/api/v1/nodes/a"),
    ]
    (watched,) = (path for _, path in api.calls if "watch=true" in path)
    assert watched.startswith(
        "/api/v1/namespaces/gpu/pods?labelSelector=app.kubernetes.io/name%3Dnode-toolkit-installer&"
    )


def test_it_is_ready_while_the_api_lets_it_watch(tmp_path: Path) -> None:
    api = FakeApi(refuses=1)
    (ready := tmp_path / "ready").touch()  # of a container before this one in the same pod

    with serving(api, tmp_path) as port, untainting(port, tmp_path):
        until(lambda: not ready.exists())
        until(ready.exists)

        api.refuses, api.hangs_up = 1, True
        with api.changed:
            api.changed.notify_all()
        until(lambda: not ready.exists())


def test_what_others_do_to_the_taints_meanwhile_stays(tmp_path: Path) -> None:
    api = FakeApi({"a": node(OURS)}, meddled=2)
    api.tell("ADDED", pod("a"))

    with serving(api, tmp_path) as port, untainting(port, tmp_path):
        until(lambda: api.nodes["a"]["spec"]["taints"] == [THEIRS, THEIRS])


def test_an_api_that_goes_away_is_asked_again(tmp_path: Path) -> None:
    api = FakeApi({"b": node(OURS)}, refuses=1)
    api.tell("ADDED", pod("gone"))
    api.tell("ADDED", pod("b"))

    with serving(api, tmp_path) as port, untainting(port, tmp_path):
        until(lambda: not api.nodes["b"]["spec"]["taints"])
        asked = len(api.calls)
        api.hangs_up = True
        with api.changed:
            api.changed.notify_all()
        until(lambda: len(api.calls) > asked)

    assert sum(path == "/api/v1/nodes/b" for _, path in api.calls) == 2, "not once more for each watch"


def test_outside_of_a_pod_it_says_what_is_missing() -> None:
    done = preloaded.run([sys.executable, "-m", "installer", "untaint"])

    said = json.loads(done.stderr)
    assert (done.returncode, said["code"]) == (1, "kubernetes-api")
    assert said["remedy"] == "run it in a pod, with a service account whose token is mounted"


@pytest.mark.parametrize(
    ("taints", "left"),
    [
        pytest.param([], [], id="none"),
        pytest.param([THEIRS], [THEIRS], id="others' alone"),
        pytest.param([OURS, THEIRS, {**OURS, "effect": "NoExecute"}], [THEIRS], id="with two effects"),
    ],
)
def test_only_our_taint_goes(taints: list[dict[str, str]], left: list[dict[str, str]]) -> None:
    api = FakeApi({"a": node(*taints)})

    patch = make_patch(api.nodes["a"])

    assert not patch or api.patch("a", patch) == 200
    assert api.nodes["a"] == node(*left)


def test_a_pod_that_no_node_has_yet_makes_no_node_ready() -> None:
    assert find_ready_node({"metadata": {}, "spec": {}}) == ""
