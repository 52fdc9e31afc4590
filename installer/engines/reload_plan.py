"""The steps by which an engine takes up its new configs, and why its restart waits."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from installer.errors import NotYetError
from installer.model.effective import EffectiveConfig
from installer.model.engine import SHORT_ID, EngineState
from installer.model.facts import list_some
from installer.model.steps import Reload, Step, WriteConfig


def plan_reload(
    writes: Sequence[WriteConfig], reload: Reload, in_force: EffectiveConfig | None, engine: EngineState
) -> list[Step]:
    """Plan the writes of an engine's configs around the restart or reload.

    Most engines have in force after a restart the texts of their files: all writes come first. dockerd keeps
    the keys that a file leaves out, and may die of a file with which a start would succeed: an intermediate
    text comes before the signal, the wanted text after.

    Args:
        writes: the writes, in the order of the engine's reading.
        reload: the restart or reload.
        in_force: the config in force; None if unknown.
        engine: the running engine.
    """
    steps: list[Step] = []
    afterwards: list[Step] = []
    last = {write.path: write for write in writes}
    for write in writes:
        if write is not last[write.path]:
            steps.append(write)
            continue
        route = engine.kind.find_route(engine, write.path, in_force, write.after)
        first = route.texts[0]
        if write.before != first:
            steps.append(replace(write, after=first, passing=route.passing))
        for before, after in pairwise(route.texts):
            afterwards.append(replace(write, before=before, after=after, passing=route.passing))
    return [*steps, reload, *afterwards]


def serves_as_before(engine: EngineState, serving: EffectiveConfig | None) -> bool:
    """Tell whether an engine with ``serving`` in force serves the same as it did at its observation."""
    before = engine.serving
    if before is None or serving is None or before.default != serving.default:
        return False
    for one, other in ((before, serving), (serving, before)):
        if any(engine.kind.find_differences(one, other)):
            return False
    return True


def postpone(engine: EngineState) -> NotYetError:
    """Return the error that postpones the restart of an engine with containers in state CREATED."""
    short_ids = [container_id[:SHORT_ID] for container_id in sorted(engine.creating)]
    names = list_some(short_ids)
    return NotYetError(
        f"restart {engine.title} yet (it has created containers that are not started: {names})",
        remedy="wait for run to find none, or restart it at once with toolkit-installer reconcile; where "
        "no run waits, run install again",
    )
