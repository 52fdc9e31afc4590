"""The taint that keeps pods away from a node until its toolkit is ready: when it goes, by which change."""

from typing import Any, Final

KEY: Final = "node-toolkit-installer/not-ready"


def uid_of(pod: object) -> str:
    """Return what tells a pod from a later one of its name; "" where nothing does."""
    uid = _at(pod, "metadata", "uid")
    return uid if isinstance(uid, str) else ""


def node_made_ready(pod: object) -> str:
    """Return the node on which a pod of the toolkit is ready; "" where it is not, or ends."""
    if _at(pod, "metadata", "deletionTimestamp"):
        return ""
    conditions = _list(_at(pod, "status", "conditions"))
    ready = any(_at(each, "type") == "Ready" and _at(each, "status") == "True" for each in conditions)
    node = _at(pod, "spec", "nodeName")
    return node if ready and isinstance(node, str) and node.isascii() else ""


def without_taint(node: object) -> list[dict[str, Any]]:
    """Return the JSON patch that takes our taint off a node, and nothing where it has none.

    Each removal is tested first: somebody else may have changed the list meanwhile, which has no names.
    """
    taints = _list(_at(node, "spec", "taints"))
    found = [index for index, taint in enumerate(taints) if _at(taint, "key") == KEY]
    patch: list[dict[str, Any]] = []
    for path in (f"/spec/taints/{index}" for index in reversed(found)):
        patch += [{"op": "test", "path": f"{path}/key", "value": KEY}, {"op": "remove", "path": path}]
    return patch


def _at(value: object, *keys: str) -> object:
    """Return what an object of the API has at ``keys``; None where it is not of that shape."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
