"""What a ``verify`` that was killed has left in the engines."""

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.engines.row import Api
from installer.decide.errors import InstallerError
from installer.decide.facts import Container
from installer.decide.verify import MARK
from installer.host import cri_pods, docker_containers
from installer.host.files import Host
from installer.record.engines import is_held

# For all engines. A busy containerd was seen to take more than 15 s; a pod's grace has no more.
SWEEP_S: Final = 60.0
HURRIED_S: Final = 15.0
SWEEPS: Final = {Api.DOCKER: docker_containers.sweep, Api.CRI: cri_pods.sweep}


def any_among(running: Collection[Container], idle: Iterable[str]) -> bool:
    """Tell whether one of the containers that need our runtimes is of a ``verify``, or may be.

    A dockerd that has no time to tell names leaves us with the number that a shim knows.
    """
    nameless = any(each.id.startswith(each.name) for each in running)
    return nameless or any(MARK in name for name in (*(each.name for each in running), *idle))


def sweep(host: Host, sockets: Iterable[tuple[str, PurePosixPath, str]], *, hurried: bool = False) -> None:
    """Remove it from each engine that answers on its socket; what cannot be removed is found as any other.

    An engine is its name, its socket and its unit; one that its owner has stopped is left to the next sweep.
    """
    deadline = time.monotonic() + (HURRIED_S if hurried else SWEEP_S)
    for engine, socket, unit in sockets:
        if host.exists(socket) and not is_held(host, ENGINES[engine], socket, unit):
            left_s = max(1.0, deadline - time.monotonic())
            with suppress(InstallerError):
                SWEEPS[ENGINES[engine].api](host.local_path(socket), timeout_s=left_s)
