"""MicroK8s by a stand-in that renders its template at each start, and is a real containerd then."""

from collections.abc import Iterator

import pytest

from tests.engines.conftest import Boot
from tests.engines.distribution import OURS, UNSEEN, Distribution, begin, newest
from tests.engines.images import IMAGE
from tests.engines.nodes import PYTHON, SOURCE
from tests.engines.payload import ARTIFACTS
from tests.engines.told import sentence, snapshot
from tests.engines.versions import EngineSet
from tests.support.entry import NVIDIAS

DATA = "/var/snap/microk8s"
TEMPLATE = f"{DATA}/current/args/containerd-template.toml"
SOCKET = f"{DATA}/common/run/containerd.sock"
NAME = "snap.microk8s.daemon-containerd.service"
SERVICE = "Type=notify\nExecStart=/bin/sh /usr/local/bin/snap-run\n"
THEIRS = {"runc": "", "nvidia-container-runtime": "nvidia-container-runtime"}
CRI = 'plugins."io.containerd.grpc.v1.cri"'
# As the snap's default-args has it, shortened, with the sandbox that a node has.
TEXT = f"""\
version = 2
oom_score = 0

[{CRI}]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true

  [{CRI}.containerd]
    snapshotter = "${{SNAPSHOTTER}}"
    default_runtime_name = "${{RUNTIME}}"

    [{CRI}.containerd.runtimes.runc]
      # by the version of cgroups
      runtime_type = "${{RUNTIME_TYPE}}"

    [{CRI}.containerd.runtimes.nvidia-container-runtime]
      runtime_type = "${{RUNTIME_TYPE}}"

      [{CRI}.containerd.runtimes.nvidia-container-runtime.options]
        BinaryName = "nvidia-container-runtime"

  [{CRI}.cni]
    conf_dir = "${{SNAP_DATA}}/args/cni-network"
"""
# As microk8s-resources/wrappers/run-containerd-with-args of MicroK8s 1.36 does: the template is rendered at each
# start, here as on a node with cgroups of version 2, then containerd takes the wrapper's place.
WRAPPER = f"""\
#!/bin/sh
set -e
data=$(readlink -f {DATA}/current) snap=$(readlink -f /snap/microk8s/current) common={DATA}/common
sed "s,\\${{SNAP_DATA}},$data,; s,\\${{SNAPSHOTTER}},overlayfs,; s,\\${{RUNTIME}},runc,
    s,\\${{RUNTIME_TYPE}},io.containerd.runc.v2," "$data/args/containerd-template.toml" >"$data/args/containerd.toml"
mkdir -p $common/run/containerd "$snap/bin"
cp /usr/bin/containerd "$snap/bin/"
# A node's own /var has no overlays on it.
exec "$snap/bin/containerd" --config "$data/args/containerd.toml" --root /var/lib/containerd/microk8s \
    --state $common/run/containerd --address $common/run/containerd.sock
"""


@pytest.fixture
def microk8s(
    request: pytest.FixtureRequest, booted: Boot, engines_today: list[EngineSet]
) -> Iterator[Distribution]:
    """Boot a node with one, on a containerd of a major version."""
    with booted(newest(engines_today, request.param), start=False) as node:
        node.write("/usr/local/bin/snap-run", WRAPPER)
        node.write(f"{DATA}/8511/args/containerd-template.toml", TEXT)
        for above in (DATA, "/snap/microk8s"):
            node.run(["mkdir", "-p", f"{above}/8511"])
            node.run(["ln", "-s", "8511", f"{above}/current"])
        yield begin(node, NAME, SERVICE, SOCKET)


on_containerd_1 = pytest.mark.parametrize("microk8s", ["1"], indirect=True)
on_containerd_2 = pytest.mark.parametrize("microk8s", ["2"], indirect=True)


def _args(microk8s: Distribution) -> dict[str, str]:
    """Return the files of the revision that was first."""
    found = (microk8s.node.root / f"{DATA}/8511/args".lstrip("/")).iterdir()
    return {path.name: path.read_text() if path.is_file() else "" for path in found}


def refreshed(microk8s: Distribution, revision: str, template: str = "") -> None:
    """Do as snapd: copy the data for a revision that has none, lead `current` there, restart.

    A hook may put the snap's own template back.
    """
    node = microk8s.node
    copy = f"test -d {DATA}/{revision} || cp -a $(readlink -f {DATA}/current) {DATA}/{revision}"
    node.run(["sh", "-c", copy])
    node.run(["ln", "-sfn", revision, f"{DATA}/current"])
    if template:
        node.write(f"{DATA}/{revision}/args/containerd-template.toml", template)
    node.restart(NAME)
    microk8s.cri.wait()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("microk8s", ["1", "2"], indirect=True)
def test_the_template_is_edited_and_its_own_unit_restarted(microk8s: Distribution) -> None:
    node, files, args = microk8s.node, snapshot(microk8s.node), _args(microk8s)
    before = node.pid_of(NAME)

    done = node.installer("install", *SOURCE, "--set-as-default", check=True)

    assert "is not validated" not in done.stderr
    assert microk8s.handlers() == {**THEIRS, **OURS}
    assert microk8s.cri.status().config["containerd"]["defaultRuntimeName"] == "nvidia"
    template = _args(microk8s)["containerd-template.toml"]
    assert template.count('"${RUNTIME_TYPE}"') == len({**THEIRS, **OURS})
    after = node.pid_of(NAME)
    assert after != before
    pod = microk8s.cri.run_pod("nvidia-cdi", "trainer")
    again = node.run([*UNSEEN, PYTHON, "-m", "installer", "install", *SOURCE, "--set-as-default"])
    assert "nothing changed" in again.stderr
    kept = node.installer("uninstall", "--in-use", "keep")
    assert kept.returncode == 4
    assert "default/trainer (microk8s)" in sentence(kept.stderr)
    microk8s.cri.remove_pod(pod)

    node.run([*UNSEEN, PYTHON, "-m", "installer", "uninstall"])

    assert microk8s.handlers() == THEIRS
    assert _args(microk8s) == args
    assert snapshot(node) == files


@on_containerd_2
def test_nvidias_variables_are_understood_and_what_a_refresh_brings_is_served_by_the_next(
    microk8s: Distribution,
) -> None:
    node, files = microk8s.node, snapshot(microk8s.node)
    wrong = node.installer("install", *SOURCE, "--runtime", "containerd", "--socket", SOCKET)
    assert sentence(wrong.stderr).endswith("run toolkit-installer with --runtime microk8s")
    # As the addon nvidia of MicroK8s tells the GPU Operator.
    told = {"CONTAINERD_CONFIG": TEMPLATE, "CONTAINERD_SOCKET": SOCKET, "HOST_ROOT_MOUNT": "/"}
    told |= {"RUNTIME": "containerd", "NO_DAEMON": "true", "TOOLKIT_SOURCE_ROOT": ARTIFACTS}
    told |= {"NVIDIA_RUNTIME_SET_AS_DEFAULT": "false"}
    node.run([PYTHON, *NVIDIAS], env=told)
    assert microk8s.handlers() == {**THEIRS, **OURS}
    refreshed(microk8s, "8600", TEXT)
    assert microk8s.handlers() == THEIRS
    assert node.installer("status").returncode == 1

    node.installer("install", *SOURCE, check=True)

    assert microk8s.handlers() == {**THEIRS, **OURS}
    node.installer("uninstall", check=True)
    assert microk8s.handlers() == THEIRS
    assert node.read(f"{DATA}/8600/args/containerd-template.toml") == TEXT
    assert node.read(f"{DATA}/8511/args/containerd-template.toml") == TEXT, "of the revision to go back to"
    assert snapshot(node) == files


@on_containerd_1
def test_what_a_refresh_has_copied_needs_nothing_and_every_revision_is_undone(microk8s: Distribution) -> None:
    node = microk8s.node
    node.installer("install", *SOURCE, check=True)
    refreshed(microk8s, "8600")
    assert microk8s.handlers() == {**THEIRS, **OURS}
    before = node.pid_of(NAME)

    again = node.installer("install", *SOURCE, check=True)

    assert "nothing changed" in again.stderr
    assert node.pid_of(NAME) == before
    refreshed(microk8s, "8511")
    assert microk8s.handlers() == {**THEIRS, **OURS}
    assert "nothing changed" in node.installer("install", *SOURCE, check=True).stderr
    node.installer("uninstall", check=True)
    _as_before(microk8s)


@on_containerd_2
def test_what_a_revert_has_left_in_the_newer_revision_is_undone(microk8s: Distribution) -> None:
    node = microk8s.node
    refreshed(microk8s, "8600")
    node.installer("install", *SOURCE, check=True)
    refreshed(microk8s, "8511")
    assert microk8s.handlers() == THEIRS

    node.installer("uninstall", check=True)

    _as_before(microk8s)
    assert not node.has("usr/local/nvidia")


def _as_before(microk8s: Distribution) -> None:
    for revision in ("8511", "8600"):
        assert microk8s.node.read(f"{DATA}/{revision}/args/containerd-template.toml") == TEXT
        refreshed(microk8s, revision)
        assert microk8s.handlers() == THEIRS
