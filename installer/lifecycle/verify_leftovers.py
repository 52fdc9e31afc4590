"""The containers that ``verify`` creates in engines: recorded on the disk, for one may be killed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.engines import ENGINES
from installer.engines.apis import api_of
from installer.engines.ask import is_socket_activated
from installer.engines.node_shell import MARK
from installer.errors import InstallerError
from installer.host.events import log
from installer.host.files import Host, read_json_of_root
from installer.model.files import File, Layout, Meta, dumps

# To remove leftovers of verify from all engines. A busy containerd was seen to take more than 15 s, but the
# grace of a pod has no more.
SWEEP_S: Final = 60.0
HURRIED_S: Final = 15.0


class Made(Struct, frozen=True, array_like=True):
    """A container or a pod that ``verify`` has created in an engine."""

    engine: str
    socket: PurePosixPath
    unit: str
    name: str


@contextmanager
def record_made(host: Host, layout: Layout, made: Made) -> Iterator[None]:
    """Keep ``made`` on the disk during the block and after a failed block, which may have left it behind."""
    before = _read_made(host, layout)
    _write_made(host, layout, [*before, made])
    yield
    _write_made(host, layout, before)


def remove_made(host: Host, layout: Layout, *, hurried: bool = False) -> bool:
    """Remove the recorded leftovers of ``verify`` from engines; tell whether there were any."""
    made = _read_made(host, layout)
    remaining: list[Made] = []
    removed = False
    deadline = time.monotonic() + (HURRIED_S if hurried else SWEEP_S)
    for each in made:
        try:
            for what in _remove_one(host, each, timeout_s=max(1.0, deadline - time.monotonic())):
                log.info("verify leftover removed", engine=each.engine, what=what, name=each.name)
                removed = True
        except InstallerError as error:
            log.warning("verify leftover not removed", engine=each.engine, name=each.name, error=error)
            remaining.append(each)  # for the next time: its owner may have stopped the engine
    if remaining != made:
        _write_made(host, layout, remaining)
    return removed


def _remove_one(host: Host, made: Made, *, timeout_s: float) -> list[str]:
    kind = ENGINES[made.engine]
    if not host.exists(made.socket) or is_socket_activated(host, kind, made.socket, made.unit):
        problem = f"reach {kind.title} on {made.socket} (it does not run)"
        remedy = f"start it, and remove {made.name} by hand"
        raise InstallerError(problem, remedy=remedy, code="engine-not-answering")
    return api_of(kind).remove_container(host.local_path(made.socket), made.name, timeout_s=timeout_s)


def _read_made(host: Host, layout: Layout) -> list[Made]:
    found = (
        read_json_of_root(host, layout.made, dict[str, list[Made]]) or {}
    )  # a damaged file counts as empty
    made = found.get("made", ())
    mark = f"{MARK}-"
    return [each for each in made if each.engine in ENGINES and each.name.startswith(mark)]


def _write_made(host: Host, layout: Layout, made: list[Made]) -> None:
    if made:
        host.replace(layout.made, File(dumps({"made": made}), Meta(0o600)))
    elif host.exists(layout.made):
        host.remove(layout.made)
