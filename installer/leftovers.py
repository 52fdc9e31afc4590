"""What ``verify`` makes in the engines: written down by name before it is made, and removed by that alone."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from installer.decide.engines import ENGINES
from installer.decide.engines.row import Api
from installer.decide.errors import InstallerError
from installer.decide.inode import File, Meta
from installer.decide.layout import Layout
from installer.decide.verify import MARK
from installer.host import cri_pods, docker_containers
from installer.host.events import log
from installer.host.files import Host
from installer.record.engines import is_held
from installer.record.texts import told_by_root

# For all engines. A busy containerd was seen to take more than 15 s; a pod's grace has no more.
SWEEP_S: Final = 60.0
HURRIED_S: Final = 15.0
REMOVE: Final = {Api.DOCKER: docker_containers.remove, Api.CRI: cri_pods.remove}

Made: TypeAlias = tuple[str, str, str, str]  # an engine, its socket and unit, the name of what it made


@contextmanager
def written_down(host: Host, layout: Layout, made: Made) -> Iterator[None]:
    """Keep written down what is made during the block; where that fails it may be there still."""
    before = _made(host, layout)
    _write(host, layout, [*before, made])
    yield
    _write(host, layout, before)


def remove_made(host: Host, layout: Layout, *, hurried: bool = False) -> bool:
    """Remove what is written down and is there still; tell whether something was.

    What cannot be removed is left to the next time: also of an engine that its owner has stopped.
    """
    made, left, removed = _made(host, layout), list[Made](), False
    deadline = time.monotonic() + (HURRIED_S if hurried else SWEEP_S)
    for each in made:
        try:
            removed = _remove(host, each, timeout_s=max(1.0, deadline - time.monotonic())) or removed
        except InstallerError as error:
            log.warning("verify leftover not removed", engine=each[0], name=each[-1], error=error)
            left.append(each)
    if left != made:
        _write(host, layout, left)
    return removed


def _remove(host: Host, made: Made, *, timeout_s: float) -> bool:
    engine, socket, unit, name = made
    path, row = PurePosixPath(socket), ENGINES[engine]
    if not host.exists(path) or is_held(host, row, path, unit):
        raise InstallerError(
            f"reach {row.title} on {path} (it does not run)",
            remedy=f"start it, and remove {name} by hand",
            code="engine-not-answering",
        )
    found = REMOVE[row.api](host.local_path(path), name, timeout_s=timeout_s)
    for what in found:
        log.info("verify leftover removed", engine=engine, what=what, name=name)
    return bool(found)


def _made(host: Host, layout: Layout) -> list[Made]:
    try:
        return [
            (engine, str(PurePosixPath(socket)), unit, name)
            for engine, socket, unit, name in told_by_root(host, layout.made).get("made", ())
            if engine in ENGINES and name.startswith(f"{MARK}-")
        ]
    except (AttributeError, TypeError, ValueError):  # damaged: nothing is known
        return []


def _write(host: Host, layout: Layout, made: list[Made]) -> None:
    if made:
        host.replace(layout.made, File(json.dumps({"made": made}).encode() + b"\n", Meta(0o600)))
    elif host.exists(layout.made):
        host.remove(layout.made)
