"""The taint that keeps pods away from a node until its toolkit is ready: when it goes, by which change."""

from collections.abc import Mapping
from typing import Any, Final

KEY: Final = "node-toolkit-installer/not-ready"


def node_made_ready(pod: Mapping[str, Any]) -> str:
    """Return the node on which a pod of the toolkit is ready; "" where it is not, or ends."""
    if pod["metadata"].get("deletionTimestamp"):
        return ""
    conditions = pod.get("status", {}).get("conditions") or []
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return str(pod["spec"].get("nodeName", "")) if ready else ""


def without_taint(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON patch that takes our taint off a node, and nothing where it has none.

    Each removal is tested first: somebody else may have changed the list meanwhile, which has no names.
    """
    taints = node["spec"].get("taints") or []
    found = [index for index, taint in enumerate(taints) if taint["key"] == KEY]
    patch: list[dict[str, Any]] = []
    for path in (f"/spec/taints/{index}" for index in reversed(found)):
        patch += [{"op": "test", "path": f"{path}/key", "value": KEY}, {"op": "remove", "path": path}]
    return patch
