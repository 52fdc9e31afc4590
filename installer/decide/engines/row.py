"""What differs from engine to engine: one row each, which every floor reads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from installer.decide.edits import Edit, Tree
from installer.decide.effect import Effect
from installer.decide.engines.model import ConfigFiles, Decision, Extras, RuntimeEntry


class Reload(StrEnum):
    """How an engine takes up a changed config."""

    HUP = "SIGHUP"
    RESTART = "restart"
    WATCHED = "watched"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: what differs from the others is in this row.

    ``default_key`` is the last part of the key that names its default runtime. ``needs_handler`` tells
    for a version whether a container cannot be used any more once its handler is not configured:
    containerd 2.x then refuses exec, CRI-O even stop and remove (engines.md 10, 11).

    ``edits`` are the ways to have our runtimes served, the plainest first; ``effect`` is what files have in
    force as far as their texts tell; ``relocated`` are edits whose keys the engine's own tools have moved.

    ``finishes_calls`` tells that it stops when the calls in flight have returned, so that a container which
    it ends cannot wait for its restart.

    ``found_by`` is the runtime of a toolkit at its usual place that the engine looks for by itself each time
    it starts, writing its whole config anew: nothing is edited there. Such an engine is part of one of
    ``units``, and its start takes up to ``start_s`` seconds: it is done when all of Kubernetes is.
    """

    name: str
    config: PurePosixPath
    drop_in: PurePosixPath | None
    drop_in_dir: PurePosixPath | None
    socket: PurePosixPath
    unit: str
    process: str
    reload: Reload
    default_key: str
    needs_handler: Callable[[tuple[int, ...] | None], bool]
    edits: Callable[[ConfigFiles, tuple[RuntimeEntry, ...], Extras], Iterable[Decision]]
    effect: Callable[[ConfigFiles], Effect]
    finishes_calls: bool = False
    found_by: str = ""
    units: tuple[str, ...] = ()
    start_s: float = 0.0
    relocated: Callable[[tuple[Edit, ...], Tree], tuple[Edit, ...]] = lambda edits, _: edits
