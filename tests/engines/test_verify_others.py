"""What others have in an engine is theirs, also with our label on it: no undo and no verify removes it."""

import uuid

import pytest

from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.host.servers import message

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
LABEL = "toolkit-installer=toolkit-installer-verify"


def run_labelled_pod(cri: Cri) -> str:
    """Run a pod as a kubelet makes it, with our label among its own; return its id."""
    name = f"toolkit-installer-verify-{uuid.uuid4().hex[:8]}"
    key, value = LABEL.split("=")
    metadata = message((1, name), (2, str(uuid.uuid4())), (3, "default"))
    linux = message((2, message((1, message((1, 2), (2, 1))))))
    config = message((1, metadata), (6, message((1, key), (2, value))), (8, linux))
    answer = cri.call("RuntimeService/RunPodSandbox", message((1, config)))
    return answer[2 : 2 + answer[1]].decode()


def test_containers_and_images_of_others_with_our_label_outlive_verify_and_uninstall(
    docker_node: Node,
) -> None:
    node = docker_node
    node.installer("install", *SOURCE, check=True)
    archive = "printf '' | tar -cT /dev/null"
    image = node.run(["sh", "-c", f"{archive} | docker import --change 'LABEL {LABEL}' - theirs:1"])
    running = node.run(["docker", "run", "--detach", "--label", LABEL, IMAGE])
    stopped = node.run(
        ["docker", "create", "--label", LABEL, "--name", "toolkit-installer-verify-1a2b3c4d", IMAGE]
    )
    theirs = {running.stdout.strip(), stopped.stdout.strip()}

    assert node.installer("verify").returncode == 0
    node.installer("uninstall", check=True)

    assert image.returncode == 0, image.stderr
    assert {*node.run(["docker", "ps", "--all", "--quiet", "--no-trunc"]).stdout.split()} == theirs
    assert node.run(["docker", "ps", "--quiet", "--no-trunc"]).stdout == running.stdout
    assert "theirs" in node.run(["docker", "images"]).stdout


def test_pods_of_others_with_our_label_outlive_verify_and_uninstall(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    pod = run_labelled_pod(cri)

    assert node.installer("verify").returncode == 0
    node.installer("uninstall", check=True)

    assert [*cri.pods()] == [pod]
