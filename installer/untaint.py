"""``untaint``: in a pod of its own, takes the startup taint off each node whose toolkit has become ready."""

import signal
import sys
import time
from typing import Final, NoReturn
from urllib.parse import quote

from installer.decide.errors import Exit, InstallerError
from installer.decide.taint import node_made_ready, uid_of, without_taint
from installer.host import signals
from installer.host.events import log
from installer.host.kubernetes import Api, RefusedError

WATCH_S: Final = 1800
PAUSE_S: Final = 5.0
NOT_FOUND, CONFLICT, UNPROCESSABLE = 404, 409, 422  # the node is gone; the test of the patch has failed


def untaint(api: Api, name: str) -> NoReturn:
    """Watch the pods labelled with ``name`` until a signal ends this process: there is nothing to undo."""
    for number in signals.STOP:
        signal.signal(number, _end)
    seen: set[str] = set()
    with signals.unblocked():
        while True:
            try:
                _watch(api, name, seen)
            except InstallerError as error:
                log.warning("watch ended", error=str(error), code=error.code)
                time.sleep(PAUSE_S)


def _end(_number: int, _frame: object) -> NoReturn:
    sys.exit(Exit.OK)


def _watch(api: Api, name: str, seen: set[str]) -> None:
    """Follow the pods of one watch; ``seen`` are those whose node was looked at."""
    selector = quote(f"app.kubernetes.io/name={name}")
    path = f"/api/v1/namespaces/{api.namespace}/pods?labelSelector={selector}"
    for pod in api.watch(f"{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"):
        uid, node = uid_of(pod), node_made_ready(pod)
        if node and uid not in seen and _freed(api, node):
            seen.add(uid)


def _freed(api: Api, node: str) -> bool:
    """Take our taint off a node; tell whether that is settled."""
    path = f"/api/v1/nodes/{quote(node)}"
    try:
        if patch := without_taint(api.get(path)):
            api.patch(path, patch)
            log.info("taint removed", node=node)
    except RefusedError as error:
        if error.status in {CONFLICT, UNPROCESSABLE}:
            return _freed(api, node)
        if error.status != NOT_FOUND:
            raise
    return True
