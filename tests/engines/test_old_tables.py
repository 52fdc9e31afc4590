"""The tables of containerd 1.x that are runtimes by another name: what they serve stays served; 2.x ignores them."""

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import served, snapshot

# restrict_oom_score_adj: a machine without CAP_SYS_RESOURCE cannot give a pod the -998 it asks for.
TABLES = f"""\
[CRI]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
[CRI.containerd.default_runtime]
runtime_type = "io.containerd.runc.v2"
[CRI.containerd.untrusted_workload_runtime]
runtime_type = "io.containerd.runc.v2"
[CRI.containerd.runtimes.kata]
runtime_type = "io.containerd.runc.v2"
"""
OPTIONS = """\
[CRI.containerd.default_runtime.options]
SystemdCgroup = false
BinaryName = "/usr/sbin/runc"
"""
SCHEMA_1 = TABLES.replace("CRI", "plugins.cri")
SCHEMA_2 = "version = 2\n" + f"{TABLES}{OPTIONS}".replace("CRI", 'plugins."io.containerd.grpc.v1.cri"')


@pytest.mark.sampled(16)
@pytest.mark.parametrize("text", [SCHEMA_2, SCHEMA_1], ids=["schema 2", "schema 1"])
def test_what_old_tables_serve_is_served_beside_our_default_and_their_names_are_taken(
    containerd_node: Node, cri: Cri, text: str
) -> None:
    node, new = containerd_node, containerd_node.containerd_version.startswith("2.")
    node.write(CONTAINERD, SCHEMA_2 if new else text)  # 2.x does not read schema 1
    node.restart_engine()
    files, (before, default) = snapshot(node), served(node)
    tables = cri.status().runtimes

    done = node.installer("install", *SOURCE, "--set-as-default", check=True)

    assert "is not defined" not in done.stderr
    assert served(node)[1] == "nvidia"
    now = cri.status().runtimes
    for name in before:
        assert now[name]["options"] == tables[name]["options"]
        cri.remove_pod(cri.run_pod(name))
    undone = node.installer("uninstall", check=True)
    assert "is not defined" not in undone.stderr
    # CRI of 1.x does not load beside a runtime that is named as one of these tables is.
    named = node.installer("install", *SOURCE, "--runtime-name", "untrusted")
    assert named.returncode == (0 if new else 1), named.stderr
    node.installer("uninstall", check=True)
    assert served(node) == (before, default)
    assert snapshot(node) == files
