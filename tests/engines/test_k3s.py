"""k3s and RKE2 by a stand-in that does at its start what they do, with a real containerd as its child.

It looks for the toolkit and writes the whole config of its containerd anew.

Where it looks and what it writes: engine-facts.md#k3s-start.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engines.distribution import TOOLKIT, UNSEEN, Distribution
from tests.engines.nodes import PYTHON, SOURCE, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.rancher_nodes import TEMPLATE, name_of, rancher, use_template
from tests.engines.told import bad, doctor, sentence, snapshot
from tests.support.entry import NVIDIAS

__all__ = ["rancher"]  # a fixture

PCI = "/sys/bus/pci/devices"


@pytest.mark.sampled(16)
@pytest.mark.parametrize("inside", [(), UNSEEN], ids=["seen", "from another pid namespace"])
def test_it_finds_the_toolkit_after_one_restart_and_nothing_else_is_touched(
    rancher: Distribution, inside: tuple[str, ...]
) -> None:
    node, name, files = rancher.node, name_of(rancher.unit), snapshot(rancher.node)
    installer = [*inside, PYTHON, "-m", "installer"]
    before = node.pid_of(rancher.unit)

    node.run([*installer, "install", *SOURCE])

    after = node.pid_of(rancher.unit)
    assert after != before
    assert rancher.handlers() == {"runc": "", "nvidia": TOOLKIT}
    status = node.installer("status").stdout
    assert f"\nengines: {name}\nready: no: no toolkit-installer run waits" in status
    pod = rancher.cri.run_pod("nvidia", "trainer")
    container = rancher.cri.start_container(pod)
    assert rancher.cri.exec(container, "echo", "alive").stdout == "alive\n"

    again = node.run([*installer, "install", *SOURCE])
    assert "nothing changed" in again.stderr
    assert node.pid_of(rancher.unit) == after
    kept = node.run([*installer, "uninstall", "--in-use", "keep"], check=False)
    assert kept.returncode == 4
    assert f"default/trainer ({name})" in sentence(kept.stderr)
    rancher.cri.remove_pod(pod)

    node.run([*installer, "uninstall"])
    assert snapshot(node) == files
    assert node.pid_of(rancher.unit) == after, "its config is written anew when it starts"
    node.restart(rancher.unit)
    rancher.cri.wait()
    assert rancher.handlers() == {"runc": ""}


@contextmanager
def _gpu(node: Node) -> Iterator[None]:
    """Show a GPU on the node's PCI bus."""
    node.run(["mount", "-t", "tmpfs", "none", PCI])
    node.write(f"{PCI}/0000:17:00.0/vendor", "0x10de\n")
    node.write(f"{PCI}/0000:17:00.0/class", "0x030200\n")
    yield
    node.run(["umount", PCI])


@pytest.mark.sampled(16)
def test_a_template_of_its_owner_without_our_runtime_is_told_before_a_restart(rancher: Distribution) -> None:
    node, name = rancher.node, name_of(rancher.unit)
    own = node.read(TEMPLATE.replace("NAME", name).replace("config-v3.toml.tmpl", "config.toml"))
    path = use_template(rancher, own)
    files, pid = snapshot(node), node.pid_of(rancher.unit)

    planned, refused = node.installer("plan", *SOURCE), node.installer("install", *SOURCE)
    with _gpu(node):  # else doctor has nothing against such a template
        code, checks = doctor(node)

    assert (planned.returncode, refused.returncode, code) == (1, 1, 1), refused.stderr
    said = f"its template {path} defines no runtime nvidia that starts {TOOLKIT}"
    assert said in planned.stdout + planned.stderr
    assert said in bad(checks)["config-accepted"]
    assert said in sentence(refused.stderr)
    assert "containerd.runtimes.nvidia] with runtime_type" in sentence(refused.stderr)
    assert (snapshot(node), node.pid_of(rancher.unit)) == (files, pid)

    # Nor is it restarted into settings that it does not start with.
    settings = f"/etc/rancher/{name}/registries.yaml"
    node.write(path, '{{ template "base" . }}\n')
    node.write(settings, "mirrors:\n\tdocker.io: {}\n")
    refused = node.installer("install", *SOURCE)
    assert refused.returncode == 1
    assert f"would not start it again: {settings} is no YAML, line 2" in sentence(refused.stderr)
    assert node.pid_of(rancher.unit) == pid
    node.write(settings, "mirrors: {}\n")
    planned = node.installer("plan", *SOURCE)
    assert f"brings into force what was changed after its start in {path}, {settings}" in planned.stdout

    # What its owner mends and restarts is installed, without --retry.
    path = use_template(rancher, '{{ template "base" . }}\n\n[debug]\n  level = "info"\n')
    node.installer("install", *SOURCE, check=True)
    assert rancher.handlers() == {"runc": "", "nvidia": TOOLKIT}

    # What he takes out again is told before the next start.
    node.write(path, own)
    status, (code, checks) = node.installer("status"), doctor(node)
    assert (status.returncode, code) == (1, 1)
    assert said in status.stdout
    assert said in bad(checks)["config-accepted"]
    pid = node.pid_of(rancher.unit)
    node.installer("uninstall", check=True)
    assert node.pid_of(rancher.unit) == pid


@pytest.mark.night  # the first install waits the two minutes that k3s may take to start
def test_a_template_that_its_owner_mends_after_a_failure_needs_no_retry(rancher: Distribution) -> None:
    node, name = rancher.node, name_of(rancher.unit)
    own = node.read(TEMPLATE.replace("NAME", name).replace("config-v3.toml.tmpl", "config.toml"))
    # What the imports define is not known before the restart: nothing.
    use_template(rancher, own.replace("version = 3\n", 'version = 3\nimports = ["/srv/none/*.toml"]\n'))
    wanted = ("install", *SOURCE)
    failed, refused = node.installer(*wanted), node.installer(*wanted)

    use_template(rancher, '{{ template "base" . }}\n')
    done = node.installer(*wanted)

    assert (failed.returncode, refused.returncode) == (1, 1), failed.stderr
    assert "failed before" in sentence(refused.stderr)
    assert done.returncode == 0, done.stderr
    assert rancher.handlers() == {"runc": "", "nvidia": TOOLKIT}


# As the GPU Operator, told of k3s (toolkit.env), hands that on with mounts of the two directories.
TOLD = {
    "RUNTIME": "containerd",
    "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
    "RUNTIME_SOCKET": "/runtime/sock-dir/containerd.sock",
    "HOST_ROOT_MOUNT": "/host",
    "NO_DAEMON": "true",
    "TOOLKIT_SOURCE_ROOT": ARTIFACTS,
}
MOUNTED = """\
mkdir -p /host /runtime/config-dir /runtime/sock-dir
mount --rbind / /host
mount --bind /var/lib/rancher/NAME/agent/etc/containerd /runtime/config-dir
mount --bind /run/k3s/containerd /runtime/sock-dir
exec "$@"
"""


@pytest.mark.sampled(16)
def test_nvidias_variables_for_it_are_understood(rancher: Distribution) -> None:
    node, before = rancher.node, rancher.node.pid_of(rancher.unit)
    mounted = ["unshare", "--mount", "sh", "-ec", MOUNTED.replace("NAME", name_of(rancher.unit)), "mounted"]

    done = node.run([*mounted, PYTHON, *NVIDIAS], env=TOLD)

    assert "--default-runtime nvidia" in done.stderr, "the default is no business of ours there"
    assert node.pid_of(rancher.unit) != before
    assert rancher.handlers() == {"runc": "", "nvidia": TOOLKIT}
