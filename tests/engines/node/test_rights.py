"""What the manifests ask of a node: each right is needed, and no other is."""

import pytest

from tests.deploy.rendered import container_of, kustomized
from tests.engines.configs import CONTAINERD
from tests.engines.node.kubelet import TAG, Running, apply, begin, daemon_set, on_disk, problem
from tests.engines.nodes import Node
from tests.engines.told import served, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.night
OWNER = 1000
RESTARTED = "the engine was restarted into a config that it had not tried"
# What then happens.
LACK = {
    "CHOWN": "cannot write /etc/containerd/config.toml (operation not permitted)",
    "DAC_OVERRIDE": "cannot look at /etc/containerd/config.toml (permission denied)",
    "FOWNER": "cannot write /etc/containerd/config.toml (operation not permitted)",
    "SYS_CHROOT": RESTARTED,
}
CAPABILITIES = container_of(kustomized("base"))["securityContext"]["capabilities"]["add"]


def a_careful_owner_is_served(node: Node, without: str = "") -> None:
    """Configure a node whose configs are kept by somebody who is not root, and one whose config is half-edited."""
    manifest = daemon_set("undo")
    owned = f"chown -R {OWNER}:{OWNER} /etc/containerd; chmod 700 /etc/containerd; chmod 600 {CONTAINERD}"
    node.run(["sh", "-c", owned])
    files, before = snapshot(node), served(node)
    pod = begin(node, "toolkit", manifest, drop=without)
    assert node.path(CONTAINERD).stat().st_uid == OWNER
    assert pod.delete() == 0
    assert on_disk(snapshot(node)) == on_disk(files)
    assert served(node) == before

    engine = node.pid_of("containerd.service")
    text = node.read(CONTAINERD)
    node.write(CONTAINERD, text.replace("oom_score = 0", 'oom_score = "not yet"'))
    pod = apply(node, "toolkit-again", manifest, TAG, without)
    until(lambda: _has_told(node, pod, engine), pod.log)
    until(lambda: not pod.runs(), pod.log)
    said = problem(pod.log())
    node.write(CONTAINERD, text)
    assert pod.exit_code() == 1
    assert "refuses the config it has" in said, said


def _has_told(node: Node, pod: Running, engine: int) -> bool:
    """Tell whether the pod has a problem. Its engine, which may be down for a minute, is not asked."""
    assert node.pid_of("containerd.service") == engine, RESTARTED
    return '"problem"' in pod.log()


def test_what_the_manifests_ask_for_is_enough(containerd_with_images: Node) -> None:
    a_careful_owner_is_served(containerd_with_images)


@pytest.mark.parametrize("without", CAPABILITIES)
def test_the_pod_needs_each_of_its_capabilities(newest_with_images: Node, without: str) -> None:
    with pytest.raises(AssertionError) as failed:
        a_careful_owner_is_served(newest_with_images, without)

    assert LACK[without] in problem(str(failed.value))
