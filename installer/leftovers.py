"""What a ``verify`` that was killed has left in the engines."""

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.engines.row import Api
from installer.decide.errors import InstallerError
from installer.decide.facts import Container, EngineFacts
from installer.decide.verify import MARK
from installer.host import cri_pods, docker_containers
from installer.host.files import Host
from installer.record.engines import is_held

# For all engines. A busy containerd was seen to take more than 15 s; a pod's grace has no more.
SWEEP_S: Final = 60.0
HURRIED_S: Final = 15.0
LOOK_S: Final = 5.0  # for an engine that has just answered
LOOKS: Final = {Api.DOCKER: docker_containers.left, Api.CRI: cri_pods.left}
SWEEPS: Final = {Api.DOCKER: docker_containers.sweep, Api.CRI: cri_pods.sweep}


def any_among(running: Collection[Container], idle: Iterable[str]) -> bool:
    """Tell whether one of the containers that need our runtimes is of a ``verify``, or may be.

    A dockerd that has no time to tell names leaves us with the number that a shim knows.
    """
    nameless = any(each.id.startswith(each.name) for each in running)
    return nameless or any(MARK in name for name in (*(each.name for each in running), *idle))


def any_in(host: Host, engines: Iterable[EngineFacts]) -> bool:
    """Tell whether an engine that has answered knows something of a ``verify`` that does not run.

    One that was killed at its beginning or its end has left an image, or a pod that is stopped.
    """
    for each in engines:
        with suppress(InstallerError):
            asked = each.serving is not None
            if asked and LOOKS[ENGINES[each.name].api](host.local_path(each.socket), timeout_s=LOOK_S):
                return True
    return False


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
