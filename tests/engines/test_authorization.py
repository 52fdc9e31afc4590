"""Authorization plugins that daemon.json names and dockerd has not yet: a reload of ours must not end it."""

import json

import pytest

from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.told import but_the_ledger, sentence, served, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

SOCKET = "/run/docker/plugins/site.sock"
PLUGIN = f"""\
import http.server, os, socketserver
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = b'{{"Implements": ["authz"], "Allow": true}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def address_string(self):
        return ""
os.makedirs(os.path.dirname("{SOCKET}"), exist_ok=True)
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    pass
Server("{SOCKET}", Answer).serve_forever()
"""


def _name_plugin(node: Node) -> None:
    text = json.dumps({**json.loads(node.read(DOCKER)), "authorization-plugins": ["site"]}, indent=4)
    node.write(DOCKER, text)


@pytest.mark.sampled(16)
def test_a_reload_with_a_plugin_that_does_not_run_would_end_dockerd(docker_node: Node) -> None:
    node = docker_node
    _name_plugin(node)
    pid = node.pid_of()

    node.run(["kill", "-HUP", str(pid)])

    until(lambda: node.pid_of() != pid, lambda: node.journal("docker"))
    node.run(["journalctl", "--sync"])
    assert "Error validating authorization plugin" in node.journal("docker")
    node.write(DOCKER, DAEMON_JSON)
    node.restart("docker")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_no_reload_of_ours_names_a_plugin_to_dockerd_that_does_not_run(docker_node: Node, verb: str) -> None:
    node = docker_node
    before = served(node)
    words = (verb, *SOURCE) if verb == "install" else (verb,)
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    _name_plugin(node)
    files, pid = snapshot(node), node.pid_of()

    refused = node.installer(*words)

    assert refused.returncode == {"install": 1, "uninstall": 4}[verb], refused.stderr
    assert f"{DOCKER} names the authorization plugin site, which does not run" in sentence(refused.stderr)
    assert but_the_ledger(snapshot(node)) == but_the_ledger(files)
    assert node.pid_of() == pid
    if verb == "install":
        assert node.installer("plan", *SOURCE).returncode == 1
    else:
        assert "the authorization plugin site" in node.installer("status").stdout

    # The remedy: the plugin runs.
    plugin = node.start([PYTHON, "-c", PLUGIN])
    until(lambda: node.has(SOCKET), lambda: SOCKET)
    done = node.installer(*words)
    assert done.returncode == 0, done.stderr
    assert node.pid_of() == pid
    assert served(node)[0] == (before[0] | OURS if verb == "install" else before[0])
    plugin.kill()
    plugin.wait()
