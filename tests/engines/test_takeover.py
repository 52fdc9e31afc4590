"""NVIDIA's toolkit pod and ours, one after the other, on a node: each serves, and takes away what is its own."""

import pytest

from tests.engines.configs import CONTAINERD, VERSION_2
from tests.engines.images import IMAGE
from tests.engines.node.nvidias import leave_toolkit_and_configs
from tests.engines.nodes import OURS, PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served, snapshot
from tests.support.entry import NVIDIAS

TOOLKIT = "/usr/local/nvidia/toolkit"


def variables(node: Node) -> dict[str, str]:
    """Return the variables for one installation by NVIDIA's entry point, our runtime as the default."""
    return {
        "RUNTIME": node.engine,
        "HOST_ROOT_MOUNT": "/",
        "TOOLKIT_SOURCE_ROOT": ARTIFACTS,
        "NO_DAEMON": "true",
    }


def taken_over(node: Node) -> tuple[int, tuple[set[str], str], str]:
    """Install by NVIDIA's entry point and undo that; return its exit code, what was served and the toolkit's config."""
    files, before = snapshot(node), served(node)

    done = node.run([PYTHON, *NVIDIAS], env=variables(node), check=False)
    again = node.run([PYTHON, *NVIDIAS], env=variables(node), check=False)
    during, config = served(node), node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml")
    undone = node.installer("uninstall")

    assert again.returncode == done.returncode, again.stderr
    assert "toolkit installed" not in again.stderr
    assert undone.returncode == 0, undone.stderr
    assert served(node) == before
    assert snapshot(node) == files
    return done.returncode, during, config


@pytest.mark.any_version
@pytest.mark.parametrize("default", [True, False], ids=["as the default already", "not as the default"])
def test_what_nvidias_killed_pod_left_is_adopted_and_restored(node: Node, *, default: bool) -> None:
    if node.engine == "containerd":
        # NVIDIA's tool copies what the engine dumps: schema 3 on 2.x, also beside a root file of schema 2.
        node.write(CONTAINERD, VERSION_2)
        node.restart_engine()
    leave_toolkit_and_configs(node, default=default)
    before = served(node)[0]
    assert before >= OURS

    code, during, config = taken_over(node)

    assert (code, during) == (0, (before, "nvidia")), "the same handlers, served by our toolkit"
    assert "nvidia-ctk" in config, "ours"


# As container-config's containerd command of 2021 left it with --use-legacy-config (a file of schema 1).
OLD = f"""version = 1
oom_score = 0

[plugins.cri]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  [plugins.cri.containerd.default_runtime]
    runtime_type = "io.containerd.runc.v2"
    runtime_root = ""
    runtime_engine = ""
    privileged_without_host_devices = false
    [plugins.cri.containerd.default_runtime.options]
      BinaryName = "{TOOLKIT}/nvidia-container-runtime"
      Runtime = "{TOOLKIT}/nvidia-container-runtime"
"""


def test_the_default_runtime_table_of_schema_1_gives_way_and_comes_back(containerd_node: Node) -> None:
    # containerd 2.x ignores a file of schema 1: there it is refused, and nothing is changed.
    wanted = (0, "nvidia") if containerd_node.containerd_version.startswith("1.") else (1, "runc")
    leave_toolkit_and_configs(containerd_node, default=False)
    containerd_node.write(CONTAINERD, OLD)
    containerd_node.restart_engine()

    code, during, _ = taken_over(containerd_node)

    assert (code, during[1]) == wanted
