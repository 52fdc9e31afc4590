"""The tables of containerd 1.x that are runtimes by another name: what they serve stays served; 2.x ignores them."""

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import served, snapshot

RUNC = 'runtime_type = "io.containerd.runc.v2"'
CRI = 'plugins."io.containerd.grpc.v1.cri"'
# restrict_oom_score_adj: a machine without CAP_SYS_RESOURCE cannot give a pod the -998 it asks for.
HEAD = f'sandbox_image = "{IMAGE}"\nrestrict_oom_score_adj = true\n'
SCHEMA_2 = f"""version = 2
[{CRI}]
{HEAD}
[{CRI}.containerd.default_runtime]
{RUNC}
[{CRI}.containerd.default_runtime.options]
SystemdCgroup = false
BinaryName = "/usr/sbin/runc"
[{CRI}.containerd.untrusted_workload_runtime]
{RUNC}
[{CRI}.containerd.runtimes.kata]
{RUNC}
"""
SCHEMA_1 = f"""[plugins.cri]
{HEAD}
[plugins.cri.containerd.default_runtime]
{RUNC}
[plugins.cri.containerd.untrusted_workload_runtime]
{RUNC}
[plugins.cri.containerd.runtimes.kata]
{RUNC}
"""


@pytest.mark.parametrize(
    "text", [pytest.param(SCHEMA_2, id="schema 2"), pytest.param(SCHEMA_1, id="schema 1")]
)
def test_what_old_tables_serve_is_served_beside_our_default_and_their_names_are_taken(
    containerd_node: Node, cri: Cri, text: str
) -> None:
    node, new = containerd_node, containerd_node.containerd_version.startswith("2.")
    node.write(CONTAINERD, SCHEMA_2 if new else text)  # 2.x does not read schema 1
    node.restart_engine()
    files, (before, default) = snapshot(node), served(node)
    tables = cri.status().runtimes

    done = node.installer("install", *SOURCE, "--set-as-default")

    assert done.returncode == 0, done.stderr
    assert "is not defined" not in done.stderr
    assert served(node)[1] == "nvidia"
    now = cri.status().runtimes
    assert {name: now[name]["options"] for name in before} == {
        name: tables[name]["options"] for name in before
    }
    for name in before:
        cri.remove_pod(cri.run_pod(name))
    undone = node.installer("uninstall")
    assert undone.returncode == 0, undone.stderr
    assert "is not defined" not in undone.stderr
    # CRI of 1.x does not load beside a runtime that is named as one of these tables is.
    named = node.installer("install", *SOURCE, "--runtime-name", "untrusted")
    assert named.returncode == (0 if new else 1), named.stderr
    node.installer("uninstall", check=True)
    assert served(node) == (before, default)
    assert snapshot(node) == files
