"""What containerd accepts when its config is dumped, and refuses when it loads: no restart of ours runs into it."""

import json
import re
import time
from collections.abc import Mapping

import pytest

from installer.config_text import Value
from tests.engines.configs import CONTAINERD
from tests.engines.cri import Cri, CriError
from tests.engines.load_texts import CERTS, KATA, registry_mirrors, spell
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import bad, but_the_ledger, doctor, sentence, snapshot

pytestmark = pytest.mark.any_version


class Waiting:
    """A containerd whose config was edited after its start: it serves as before, and CRI would not load."""

    def __init__(self, node: Node, cri: Cri) -> None:
        self.node, self.cri = node, cri
        self.pod = cri.run_pod()
        self.container = cri.start_container(self.pod)
        self.pid = node.pid_of()

    def refuses(self, verb: str, *words: str) -> None:
        """Run a verb that would restart: it says why not, and nothing is changed."""
        files = snapshot(self.node)
        done = self.node.installer(verb, *(SOURCE if verb == "install" else ()))

        assert done.returncode == {"install": 1, "uninstall": 4}[verb], done.stderr
        for word in words:
            assert word in sentence(done.stderr), done.stderr
        assert sentence(done.stderr).count("cannot ") == 1
        assert but_the_ledger(snapshot(self.node)) == but_the_ledger(files)
        self.lives()

    def lives(self) -> None:
        assert self.node.pid_of() == self.pid
        assert self.cri.exec(self.container, "echo", "alive").stdout == "alive\n"


@pytest.mark.sampled(16)
def test_no_restart_of_ours_meets_registry_mirrors_beside_a_config_path(
    containerd_node: Node, cri: Cri
) -> None:
    node, usual = containerd_node, containerd_node.read(CONTAINERD)
    waiting = Waiting(node, cri)
    node.write(CONTAINERD, usual + registry_mirrors(node))
    words = (
        f"its CRI would not load: {CONTAINERD} sets registry.mirrors, and registry.config_path is set too",
    )

    plan = node.installer("plan", *SOURCE, "--json")
    waiting.refuses("install", *words, f"remove registry.mirrors from {CONTAINERD}")

    assert plan.returncode == 1
    assert any(words[0] in each["problem"] for each in json.loads(plan.stdout)["obstacles"])
    node.write(CONTAINERD, usual)
    node.installer("install", *SOURCE, check=True)
    waiting.pid = node.pid_of()
    node.write(CONTAINERD, node.read(CONTAINERD) + registry_mirrors(node))
    status = node.installer("status")
    assert status.returncode == 1
    assert words[0] in re.sub(r"\s+", " ", status.stdout)
    waiting.refuses("uninstall", *words, f"remove registry.mirrors from {CONTAINERD}")
    node.write(CONTAINERD, node.read(CONTAINERD).replace(registry_mirrors(node), ""))
    node.installer("uninstall", check=True)
    assert node.read(CONTAINERD) == usual


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("damage", "flaw"),
    [
        pytest.param("rm {0}", "which is not there", id="gone"),
        pytest.param("truncate --size 100 {0}", "which is no whole JSON", id="cut short"),
    ],
)
def test_a_base_spec_that_is_spoilt_after_the_start_is_told_and_not_restarted_into(
    containerd_node: Node, cri: Cri, damage: str, flaw: str
) -> None:
    node, spec = containerd_node, "/etc/containerd/cri-base.json"
    whole = node.run(["ctr", "oci", "spec"]).stdout
    node.write(spec, whole)
    keys: dict[str, Value] = {"R|containerd|runtimes|runc|base_runtime_spec": spec}
    node.write(CONTAINERD, spell(node, node.read(CONTAINERD), keys))
    node.restart_engine()
    files = node.read(CONTAINERD)
    waiting = Waiting(node, cri)
    words = f"base_runtime_spec of the runtime runc in {CONTAINERD} names {spec}, {flaw}"
    remedy = f"put {spec} right, or remove base_runtime_spec from {CONTAINERD}"

    node.run(["sh", "-c", damage.format(spec)])
    waiting.refuses("install", words, remedy)
    node.write(spec, whole)
    node.installer("install", *SOURCE, check=True)
    waiting.pid = node.pid_of()
    assert node.installer("status").returncode == 0
    node.run(["sh", "-c", damage.format(spec)])

    status = node.installer("status")
    assert status.returncode == 1
    assert words in re.sub(r"\s+", " ", status.stdout)
    code, checks = doctor(node)
    assert code == 1
    assert any(words in found for found in bad(checks).values())
    waiting.refuses("uninstall", words, remedy)
    node.write(spec, whole)
    node.installer("uninstall", check=True)
    assert node.read(CONTAINERD) == files


NRI = "plugins|io.containerd.nri.v1.nri"
PAIR = "S|x509_key_pair_streaming"
DIFF, BOLT = "plugins|io.containerd.service.v1.diff-service", "plugins|io.containerd.metadata.v1.bolt"
OVERLAY = "plugins|io.containerd.snapshotter.v1.overlayfs"
KEYS: dict[str, Mapping[str, Value]] = {
    "nothing": {},
    "mirrors": {"I|registry|config_path": CERTS, "I|registry|mirrors|a.b|endpoint": ["https://c"]},
    "mirrors alone": {"I|registry|mirrors|a.b|endpoint": ["https://c"]},
    "tls": {"I|registry|config_path": CERTS, "I|registry|configs|a.b|tls|insecure_skip_verify": True},
    "auth of an address": {"I|registry|auths|10.0.0.1:5000|username": "x"},
    "auth of an address with a scheme": {"I|registry|auths|https://10.0.0.1:5000|username": "x"},
    "auth of a name": {"I|registry|auths|docker.io:5000|username": "x"},
    "auth with a blank": {"I|registry|auths|https://a b|username": "x"},
    "auth with a percent sign": {"I|registry|auths|https://a/%zz|username": "x"},
    "auth with a word for a port": {"I|registry|auths|https://a:b|username": "x"},
    "spec that is gone": {"R|containerd|runtimes|runc|base_runtime_spec": "/etc/none.json"},
    "spec that is cut short": {"R|containerd|runtimes|runc|base_runtime_spec": "/etc/cut.json"},
    "spec that is empty": {"R|containerd|runtimes|runc|base_runtime_spec": "/etc/empty.json"},
    "spec that is a directory": {"R|containerd|runtimes|runc|base_runtime_spec": "/etc"},
    "spec that is a list": {"R|containerd|runtimes|runc|base_runtime_spec": "/etc/list.json"},
    "spec with a tail": {"R|containerd|runtimes|runc|base_runtime_spec": "/etc/tail.json"},
    "spec by a relative path": {"R|containerd|runtimes|runc|base_runtime_spec": "etc/good.json"},
    "idle timeout": {"S|stream_idle_timeout": "4"},
    "idle timeout of hours": {"S|stream_idle_timeout": "1h2.5m.5s"},
    "progress timeout": {"I|image_pull_progress_timeout": "5 m"},
    "drain timeout": {"R|drain_exec_sync_io_timeout": "x"},
    "an empty default": {"R|containerd|default_runtime_name": ""},
    "systemd_cgroup": {"R|systemd_cgroup": True},
    "no_pivot": {"R|containerd|no_pivot": True},
    "runtime_engine": {f"{KATA}|runtime_engine": "x"},
    "runtime_root": {f"{KATA}|runtime_root": "/x"},
    "all devices": {f"{KATA}|privileged_without_host_devices_all_devices_allowed": True},
    "cgroup_writable": {f"{KATA}|cgroup_writable": True},
    "io_type": {f"{KATA}|io_type": "named_pipe"},
    "sandboxer": {f"{KATA}|sandboxer": "none", f"{KATA}|sandbox_mode": "none"},
    "both directories of CNI": {"R|cni|bin_dir": "/a", "R|cni|bin_dirs": ["/b"]},
    "one directory of CNI": {"R|cni|bin_dir": "/a"},
    "a file for CNI": {"R|cni|conf_dir": "/etc/passwd"},
    "a place below a file for CNI": {"R|cni|conf_dir": "/etc/passwd/x"},
    "a file for CNI of a runtime": {f"{KATA}|cni_conf_dir": "/etc/passwd"},
    "half a key pair": {"S|enable_tls_streaming": True, f"{PAIR}|tls_cert_file": "/etc/c.pem"},
    "a key pair that is off": {f"{PAIR}|tls_cert_file": "/etc/c.pem", f"{PAIR}|tls_key_file": "/etc/k.pem"},
    "a key pair that is gone": {
        "S|enable_tls_streaming": True,
        f"{PAIR}|tls_cert_file": "/etc/c.pem",
        f"{PAIR}|tls_key_file": "/etc/k.pem",
    },
    "an unknown snapshotter": {"N|snapshotter": "nydus"},
    "a snapshotter without a pool": {"N|snapshotter": "devmapper"},
    "another snapshotter": {"N|snapshotter": "native"},
    "a file for the snapshotter": {f"{OVERLAY}|root_path": "/etc/passwd"},
    "an unused proxy": {"proxy_plugins|x|type": "snapshot", "proxy_plugins|x|address": "/run/x.sock"},
    "a bad timeout": {"timeouts|io.containerd.timeout.shim.load": "5"},
    "an unknown level": {"debug|level": "verbose"},
    "a level in capitals": {"debug|level": "WARNING"},
    "an unknown format": {"debug|format": "xml"},
    "an address without a port": {"metrics|address": "1338"},
    "an address with a port": {"metrics|address": "127.0.0.1:1338"},
    "a certificate that is gone": {"grpc|tcp_tls_cert": "/etc/none.pem", "grpc|tcp_tls_key": "/etc/none.key"},
    "a port that is none": {"S|stream_server_port": "70000"},
    "a file for NRI's socket": {f"{NRI}|disable": False, f"{NRI}|socket_path": "/etc/passwd/nri.sock"},
    "a file for NRI's plugins": {f"{NRI}|disable": False, f"{NRI}|plugin_path": "/etc/passwd"},
    "a plugin of NRI's with a bad name": {f"{NRI}|disable": False, f"{NRI}|plugin_path": "/etc/nri-bad"},
    "the same with NRI off": {f"{NRI}|disable": True, f"{NRI}|plugin_path": "/etc/nri-bad"},
    "no plugin of NRI's": {f"{NRI}|disable": False, f"{NRI}|plugin_path": "/etc/nri-none"},
    "a file for CDI": {"R|enable_cdi": True, "R|cdi_spec_dirs": ["/etc/passwd"]},
    "a policy": {f"{BOLT}|content_sharing_policy": "none"},
    "an unknown differ": {f"{DIFF}|default": ["none"]},
    "a required plugin that is unknown": {"required_plugins": ["io.containerd.snapshotter.v1.none"]},
    "a required plugin": {"required_plugins": ["io.containerd.snapshotter.v1.overlayfs"]},
    "one directory for root and state": {"root": "/run/containerd"},
    "the snapshotter off": {"disabled_plugins": ["io.containerd.snapshotter.v1.overlayfs"]},
    "the images off": {"disabled_plugins": ["io.containerd.cri.v1.images"]},
    "the metadata off": {"disabled_plugins": ["io.containerd.metadata.v1.bolt"]},
    "the transfer off": {"disabled_plugins": ["io.containerd.transfer.v1.local"]},
    "the leases off": {"disabled_plugins": ["io.containerd.lease.v1.manager"]},
    "the old runtime off": {"disabled_plugins": ["io.containerd.runtime.v1.linux"]},
    "what CRI does not need off": {"disabled_plugins": ["io.containerd.grpc.v1.tasks"]},
}
FILES = {
    "/etc/cut.json": '{"ociVersion": "1.0',
    "/etc/empty.json": "",
    "/etc/list.json": "[]",
    "/etc/tail.json": '{"ociVersion": "1.0.0"} and more',
    "/etc/good.json": '{"ociVersion": "1.0.0"}',
    "/etc/nri-bad/plugin": "#!/bin/sh\n",
    "/etc/nri-none/README": "no plugin\n",
}


def _serves(node: Node, cri: Cri) -> bool:
    """Restart containerd, and tell whether it serves CRI, and goes on doing so."""
    node.run(["systemctl", "reset-failed", "containerd"], check=False)
    # systemd waits ninety seconds for a containerd that stands still before it serves.
    node.run(["timeout", "10", "systemctl", "restart", "containerd"], check=False)
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        try:
            cri.status()
            time.sleep(0.7)  # a fatal error may come after the first answer
            cri.status()
        except CriError as error:
            if error.code == "UNIMPLEMENTED":
                return False
        else:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.sampled(16)
@pytest.mark.parametrize("pipe", ["/etc/cdi/x.json", "/var/run/cdi/x.yaml", "/etc/cni/net.d/10-x.conflist"])
def test_no_restart_of_ours_waits_for_ever_at_a_fifo(containerd_node: Node, cri: Cri, pipe: str) -> None:
    node, usual = containerd_node, containerd_node.read(CONTAINERD)
    if node.containerd_version.startswith("1.6") and "cdi" in pipe:  # which has no CDI
        return
    usual = spell(node, usual, {"R|enable_cdi": True})
    node.write(CONTAINERD, usual)
    node.restart_engine()
    node.installer("install", *SOURCE, check=True)
    waiting = Waiting(node, cri)
    node.run(["sh", "-c", f"mkdir -p {pipe.rpartition('/')[0]} && mkfifo {pipe}"])
    words = f"its CRI would not load: {pipe} is a FIFO"

    status = node.installer("status")
    undone = node.installer("uninstall")

    assert status.returncode == 1
    assert words in re.sub(r"\s+", " ", status.stdout)
    assert undone.returncode == 4
    assert words in sentence(undone.stderr)
    assert f"remove {pipe}" in sentence(undone.stderr)
    waiting.lives()
    node.run(["rm", pipe])
    node.installer("uninstall", check=True)
    assert node.read(CONTAINERD) == usual
    node.run(["mkfifo", pipe])
    Waiting(node, cri).refuses("install", words)
    assert not _serves(node, cri), "containerd itself does wait there"


KIND = "has the kind vendor.com/x"
SPECIFICATIONS = {
    "cdiVersion: 0.5.0\nkind: vendor.com/x\ndevices: []\n": KIND,
    "{cdiVersion: 0.5.0, Kind: &x vendor.com/x, devices: []}": KIND,
    "cdiVersion: 0.5.0\nkind: vendor.com/gpu\ncontainerEdits: {hooks: [~]}\n": "has a null entry in hooks",
}


@pytest.mark.any_version
def test_no_restart_of_ours_crashes_an_engine_by_a_cdi_specification(containerd_node: Node, cri: Cri) -> None:
    node, path = containerd_node, "/etc/cdi/.yaml"
    waiting = Waiting(node, cri)

    for specification, words in SPECIFICATIONS.items():
        node.write(path, specification)
        waiting.refuses("install", f"its CRI would not load: {path} {words}")

    waiting.lives()
    for specification in SPECIFICATIONS:
        node.write(path, specification)
        node.run(["systemctl", "restart", "--no-block", "containerd"])
        assert not _serves(node, cri), "containerd itself crashes"
    node.run(["rm", path])


@pytest.mark.night
def test_what_containerd_does_not_load_is_refused_and_nothing_else(containerd_node: Node, cri: Cri) -> None:
    node, usual = containerd_node, containerd_node.read(CONTAINERD)
    for path, text in FILES.items():
        node.write(path, text)
    node.path("/etc/nri-bad/plugin").chmod(0o755)
    texts = {name: spell(node, usual, keys) for name, keys in KEYS.items()}
    told: dict[str, str] = {}
    for name, text in texts.items():
        node.write(CONTAINERD, text)
        plan = node.installer("plan", *SOURCE, "--json")
        told[name] = " ".join(each["problem"] for each in json.loads(plan.stdout)["obstacles"])

    serves = {}
    for name, text in texts.items():
        node.write(CONTAINERD, text)
        serves[name] = _serves(node, cri)

    unlike = {name: told[name] for name in KEYS if bool(told[name]) == serves[name]}
    assert unlike == {}
    assert sum(serves.values()) > 10
    dumped = [words for words in told.values() if "/usr/bin/containerd: " in words]
    assert dumped == [], "the dry run alone would do for these"


def test_a_program_that_cannot_find_the_texts_refuses_no_config(containerd_node: Node) -> None:
    node = containerd_node
    node.run(["mkdir", "-p", "/mnt/host"])
    node.run(["mount", "--bind", "/", "/mnt/host"])  # without the file systems in it: /proc is empty
    node.run(["mount", "--bind", "/run", "/mnt/host/run"])

    planned = node.installer("plan", *SOURCE, "--host-root", "/mnt/host")

    assert planned.returncode == 10, planned.stdout + planned.stderr
    assert "is not validated: /usr/bin/containerd cannot tell here" in planned.stdout, planned.stdout
    node.run(["umount", "/mnt/host/run", "/mnt/host"])
