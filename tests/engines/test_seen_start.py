"""What an engine has read at a start that we saw: settings that it does not tell are not changed by a restart of ours."""

import pytest

from installer.config_text import Syntax, Value, WantedKey
from installer.config_text.change import apply
from tests.engines.configs import CONTAINERD
from tests.engines.cri import Cri
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import sentence
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

OTHER_NAME = ("--runtime-name", "gpu")
NRI = ("plugins", "io.containerd.nri.v1.nri")


def _edit(node: Node, key: tuple[str, ...], value: Value) -> None:
    text, _ = apply(node.read(CONTAINERD), [WantedKey(key, value)], Syntax.TOML, name=CONTAINERD)
    node.write(CONTAINERD, text)


@pytest.mark.sampled(4)
def test_snapshotter_and_nri_of_the_recorded_start_are_not_changed_by_a_restart_of_ours(
    containerd_node: Node, cri: Cri
) -> None:
    node = containerd_node
    is_old = node.containerd_version.startswith("1.")
    snapshotter: tuple[str, ...] = ("plugins", "io.containerd.cri.v1.images", "snapshotter")
    if is_old:
        snapshotter = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "snapshotter")
    other_storage = "keeps images and containers with native in the place of overlayfs"
    edits: list[tuple[tuple[str, ...], Value, str]] = [(snapshotter, "native", other_storage)]
    if not is_old:
        edits.append(((*NRI, "disable"), True, "switches NRI off"))
    node.installer("install", *SOURCE, check=True)
    text = node.read(CONTAINERD)
    pid = node.pid_of()
    container = cri.start_container(cri.run_pod())

    for key, value, words in edits:
        _edit(node, key, value)
        refused = node.installer("install", *SOURCE, *OTHER_NAME)
        assert refused.returncode == 1, refused.stderr
        assert words in sentence(refused.stderr)
        assert node.pid_of() == pid
        node.write(CONTAINERD, text)

    # The same text, written anew after the start, is no edit.
    planned = node.installer("plan", *SOURCE, *OTHER_NAME)
    assert "was changed after the start" not in planned.stdout
    node.installer("install", *SOURCE, *OTHER_NAME, check=True)
    assert node.pid_of() != pid
    assert cri.exec(container, "echo", "alive").stdout == "alive\n"


@pytest.mark.sampled(4)
def test_a_restart_by_the_owner_ends_the_record_of_the_start(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    pid = node.pid_of()
    node.write(CONTAINERD, f"{node.read(CONTAINERD)}# mine\n")
    node.run(["systemctl", "restart", "containerd"])
    until(
        lambda: node.pid_of() != pid,
        lambda: node.run(["systemctl", "status", "containerd"], check=False).stdout,
    )
    cri.wait()

    planned = node.installer("plan", *SOURCE, *OTHER_NAME)

    assert "was changed after the start" not in planned.stdout
