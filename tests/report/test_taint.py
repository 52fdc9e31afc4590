"""Which taint goes from which node."""

import pytest

from installer.report.untaint import find_ready_node, make_patch
from tests.support.kubernetes import OURS, THEIRS, FakeApi, node


@pytest.mark.parametrize(
    ("taints", "left"),
    [
        pytest.param([], [], id="none"),
        pytest.param([THEIRS], [THEIRS], id="others' alone"),
        pytest.param([OURS, THEIRS, {**OURS, "effect": "NoExecute"}], [THEIRS], id="with two effects"),
    ],
)
def test_only_our_taint_goes(taints: list[dict[str, str]], left: list[dict[str, str]]) -> None:
    api = FakeApi({"a": node(*taints)})

    patch = make_patch(api.nodes["a"])

    assert not patch or api.patch("a", patch) == 200
    assert api.nodes["a"] == node(*left)


def test_a_pod_that_no_node_has_yet_makes_no_node_ready() -> None:
    assert find_ready_node({"metadata": {}, "spec": {}}) == ""
