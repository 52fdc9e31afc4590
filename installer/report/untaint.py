"""``untaint``: in a pod of its own, takes the startup taint off each node whose toolkit has become ready."""

import signal
import sys
import time
from typing import Any, Final, NoReturn
from urllib.parse import quote

from installer.config_text import value_at
from installer.errors import Exit, InstallerError
from installer.host import supervision
from installer.host.events import log
from installer.host.kubernetes import Api, RefusedError

KEY: Final = "node-toolkit-installer/not-ready"
WATCH_S: Final = 1800
PAUSE_S: Final = 5.0
NOT_FOUND, CONFLICT, UNPROCESSABLE = 404, 409, 422  # the node is gone; the test of the patch has failed


def untaint(api: Api, name: str) -> NoReturn:
    """Watch the pods labelled with ``name`` until a signal ends this process: there is nothing to undo."""
    for number in supervision.STOP:
        signal.signal(number, lambda *_: sys.exit(Exit.OK))
    seen: set[str] = set()
    with supervision.unblocked_signals():
        while True:
            try:
                _watch(api, name, seen)
            except InstallerError as error:
                log.warning("node watch ended", error=str(error), code=error.code)
                time.sleep(PAUSE_S)


def _watch(api: Api, name: str, seen: set[str]) -> None:
    """Follow the pods of one watch; ``seen`` are those whose node was looked at."""
    selector = quote(f"app.kubernetes.io/name={name}")
    path = f"/api/v1/namespaces/{api.namespace}/pods?labelSelector={selector}"
    for pod in api.watch(f"{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"):
        uid, node = str(value_at(pod, ("metadata", "uid"))), find_ready_node(pod)
        if node and uid not in seen and _remove_taint(api, node):
            seen.add(uid)


def _remove_taint(api: Api, name: str) -> bool:
    """Take our taint off a node; tell whether that is settled."""
    path = f"/api/v1/nodes/{quote(name)}"
    try:
        if patch := make_patch(api.get(path)):
            api.patch(path, patch)
            log.info("taint removed", node=name)
    except RefusedError as error:
        if error.status in {CONFLICT, UNPROCESSABLE}:
            return _remove_taint(api, name)
        if error.status != NOT_FOUND:
            raise
    return True


def find_ready_node(pod: Any) -> str:
    """Return the node on which a pod of the toolkit is ready; "" where it is not, or ends."""
    if value_at(pod, ("metadata", "deletionTimestamp")):
        return ""
    conditions = _list(value_at(pod, ("status", "conditions")))
    said = [(value_at(each, ("type",)), value_at(each, ("status",))) for each in conditions]
    node = value_at(pod, ("spec", "nodeName"))
    return node if ("Ready", "True") in said and isinstance(node, str) and node.isascii() else ""


def make_patch(value: Any) -> list[dict[str, Any]]:
    """Return the JSON patch that takes our taint off a node, and nothing where it has none."""
    patch: list[dict[str, Any]] = []
    # Each removal is tested first: the list has no names, and may have changed.
    for index, taint in reversed([*enumerate(_list(value_at(value, ("spec", "taints"))))]):
        if value_at(taint, ("key",)) == KEY:
            path = f"/spec/taints/{index}"
            patch += [{"op": "test", "path": f"{path}/key", "value": KEY}, {"op": "remove", "path": path}]
    return patch


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
