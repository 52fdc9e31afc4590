"""What an admin has prepared for a start of his own: no restart of ours brings it into force."""

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Cri
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import but_the_ledger, snapshot
from tests.engines.told import sentence

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
DROP_IN = "/run/systemd/system/containerd.service.d/site.conf"
PROGRAM = "/usr/bin/containerd"
STARTS = {
    f"{PROGRAM} --config /opt/mine.toml": f"gives it --config /opt/mine.toml, and it runs with {CONTAINERD}",
    f"{PROGRAM} --root=/srv/root": "gives it --root /srv/root, and it runs with /var/lib/containerd",
    f"{PROGRAM} --state /run/other": "gives it --state /run/other, and it runs with /run/containerd",
    f"{PROGRAM} -a /run/other.sock": "gives it --address /run/other.sock, and it runs with "
    "/run/containerd/containerd.sock",
    f"/usr/bin/env GODEBUG=x=1 {PROGRAM} --root /srv/root": "gives it --root /srv/root",
}
SETTINGS = {
    ("root", "/srv/root"): "root /srv/root, and it runs with /var/lib/containerd",
    ("state", "/run/other"): "state /run/other, and it runs with /run/containerd",
    ("address", "/run/o.sock"): "address /run/o.sock, and it runs with /run/containerd/containerd.sock",
}
KILLS = ("control-group", "mixed")
REFUSALS = ("Stop", "Start")
# systemctl finds systemd where its own library looks, the installer where the mounts are.
WITHOUT_BUS = ("--mount", "/run/dbus=/run/nothing", "--mount", "/run/systemd=/run/nothing")


def edit(node: Node, text: str) -> None:
    node.write(DROP_IN, text)
    node.run(["systemctl", "daemon-reload"])


def unedit(node: Node) -> None:
    node.run(["rm", "-r", DROP_IN.rpartition("/")[0]])
    node.run(["systemctl", "daemon-reload"])


def moved(text: str, key: str, value: str) -> str:
    """Return a config of containerd's with one of its places elsewhere."""
    lines = [line for line in text.splitlines() if not line.strip().startswith(f"{key} =")]
    if key != "address":
        return "\n".join([f'{key} = "{value}"', *lines, ""])
    head = [index for index, line in enumerate(lines) if line.strip() == "[grpc]"]
    if head:
        lines.insert(head[0] + 1, f'address = "{value}"')
        return "\n".join([*lines, ""])
    return "\n".join([*lines, "[grpc]", f'address = "{value}"', ""])


class Prepared:
    """A node, and what has to be as it was after a refusal: files, the engine's process, a live pod."""

    def __init__(self, node: Node, cri: Cri) -> None:
        self.node, self.cri = node, cri
        self.pod = cri.run_pod()
        self.container = cri.start_container(self.pod)
        self.pid = node.pid_of("containerd")

    def refuses(self, verb: str, words: str, *options: str) -> None:
        files = snapshot(self.node)
        done = self.node.installer(verb, *(SOURCE if verb == "install" else ()), *options)

        assert done.returncode == {"install": 1, "uninstall": 4}[verb], done.stderr
        assert words in sentence(done.stderr), done.stderr
        assert sentence(done.stderr).count("cannot ") == 1
        assert but_the_ledger(snapshot(self.node)) == but_the_ledger(files)
        assert self.node.pid_of("containerd") == self.pid
        assert self.cri.exec(self.container, "echo", "alive").stdout == "alive\n"

    def goes_on(self) -> None:
        """Undo what is left, and see that the pod lives on."""
        self.node.installer("uninstall", check=True)
        self.cri.wait()
        assert self.cri.exec(self.container, "echo", "alive").stdout == "alive\n"
        self.cri.remove_pod(self.pod)


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_flags_that_a_unit_has_for_its_next_start_are_not_brought_into_force(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    node.run(["cp", CONTAINERD, "/opt/mine.toml"])
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    prepared = Prepared(node, cri)

    for start, words in STARTS.items():
        edit(node, f"[Service]\nExecStart=\nExecStart={start}\n")
        prepared.refuses(verb, words)

    # The same places in other words move nothing.
    edit(node, f"[Service]\nExecStart=\nExecStart={PROGRAM} --config={CONTAINERD} --state /run/containerd\n")
    node.installer("install", *SOURCE, "--runtime-name", "gpu", check=True)
    prepared.goes_on()


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_places_in_a_config_that_no_start_has_read_yet_are_not_brought_into_force(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    prepared, text = Prepared(node, cri), node.read(CONTAINERD)

    for (key, value), words in SETTINGS.items():
        node.write(CONTAINERD, moved(text, key, value))
        prepared.refuses(verb, words)

    node.write(CONTAINERD, text)
    prepared.goes_on()


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_restart_that_would_kill_the_shims_of_live_containers_is_refused(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    prepared = Prepared(node, cri)

    for mode in KILLS:
        edit(node, f"[Service]\nKillMode={mode}\n")
        prepared.refuses(verb, f"KillMode={mode}")
    prepared.refuses(verb, f"KillMode={mode}", *WITHOUT_BUS)

    cri.remove_pod(prepared.pod)
    node.installer("install", *SOURCE, "--runtime-name", "gpu", check=True)  # nobody lives there
    unedit(node)
    node.installer("uninstall", check=True)


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_unit_that_is_not_to_be_restarted_by_hand_is_told_before_anything_is_written(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    prepared = Prepared(node, cri)

    for what in REFUSALS:
        edit(node, f"[Unit]\nRefuseManual{what}=yes\n")
        prepared.refuses(verb, f"RefuseManual{what}=yes")
    prepared.refuses(verb, f"RefuseManual{what}=yes", *WITHOUT_BUS)

    unedit(node)
    prepared.goes_on()
