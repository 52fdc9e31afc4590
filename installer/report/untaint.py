"""``untaint``: in a separate pod, remove the startup taint of each node whose toolkit has become ready."""

import signal
import sys
import time
from types import FrameType
from typing import Any, Final, NoReturn
from urllib.parse import quote

from installer.config_text import value_at
from installer.errors import Exit, InstallerError
from installer.host import supervision
from installer.host.events import log
from installer.host.kubernetes import STARTUP_TAINTS, Api, RefusedError

WATCH_S: Final = 1800
PAUSE_S: Final = 5.0
TRIES: Final = 5  # to patch a node whose taints others change meanwhile; then after a pause
NOT_FOUND: Final = 404  # the node is gone
# The test of the patch has failed.
CONFLICT: Final = 409
UNPROCESSABLE: Final = 422


def untaint(api: Api, name: str) -> NoReturn:
    """Watch the pods with the label ``name`` until a signal ends this process, which has nothing to undo."""
    for number in supervision.STOP:
        signal.signal(number, _exit)
    settled: set[str] = set()
    with supervision.unblocked_signals():
        while True:
            try:
                _watch(api, name, settled)
            except InstallerError as error:
                log.warning("node watch ended", error=str(error), code=error.code)
                time.sleep(PAUSE_S)


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(Exit.OK)


def _watch(api: Api, name: str, settled: set[str]) -> None:
    """Follow the pods of one watch, and add the uid of each pod with a settled node to ``settled``."""
    selector = quote(f"app.kubernetes.io/name={name}")
    path = f"/api/v1/namespaces/{api.namespace}/pods?labelSelector={selector}"
    for pod in api.watch(f"{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"):
        uid = str(value_at(pod, ("metadata", "uid")))
        node = find_ready_node(pod)
        if node and uid not in settled:
            _remove_taint(api, node)
            settled.add(uid)


def _remove_taint(api: Api, name: str) -> None:
    """Remove our taint from a node; a node that is gone has no taint.

    Raises:
        RefusedError: the API refuses the patch, or others change the node's taints again and again.
    """
    path = f"/api/v1/nodes/{quote(name)}"
    for tries_left in reversed(range(TRIES)):
        try:
            patch = make_patch(api.ask("GET", path).content)
            if patch:
                api.patch(path, patch)
                log.info("taint removed", node=name)
        except RefusedError as error:
            if error.status == NOT_FOUND:
                return
            has_changed = error.status in {CONFLICT, UNPROCESSABLE}
            if not has_changed or not tries_left:
                raise
        else:
            return


def find_ready_node(pod: Any) -> str:
    """Return the node of a ready pod; "" for a pod that is not ready, or is being deleted."""
    if value_at(pod, ("metadata", "deletionTimestamp")):
        return ""
    for condition in _list(value_at(pod, ("status", "conditions"))):
        is_ready = value_at(condition, ("type",)) == "Ready" and value_at(condition, ("status",)) == "True"
        if not is_ready:
            continue
        node = value_at(pod, ("spec", "nodeName"))
        if isinstance(node, str) and node.isascii():
            return node
    return ""


def make_patch(node: Any) -> list[dict[str, Any]]:
    """Return the JSON patch that removes our taint from a node; no operation for a node without the taint."""
    taints = _list(value_at(node, ("spec", "taints")))
    patch: list[dict[str, Any]] = []
    # A removal goes by the index, and the list may have changed: each removal is preceded by a test.
    for index in reversed(range(len(taints))):
        key = value_at(taints[index], ("key",))
        if key in STARTUP_TAINTS:
            path = f"/spec/taints/{index}"
            patch.append({"op": "test", "path": f"{path}/key", "value": key})
            patch.append({"op": "remove", "path": path})
    return patch


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
