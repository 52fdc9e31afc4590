"""The steps by which an engine takes up its new configs, and why its restart waits."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from installer.engines import ENGINES
from installer.errors import NotYetError
from installer.model.engine import EffectiveConfig, EngineState
from installer.model.facts import list_some
from installer.model.steps import Reload, Step, WriteConfig


def take_up(
    writes: Sequence[WriteConfig], reload: Reload, in_force: EffectiveConfig | None, engine: EngineState
) -> list[Step]:
    """Return the writes and the reload of an engine; ``in_force`` is None if unknown.

    A restarted engine has in force what its files say. A signalled dockerd keeps the keys that its file
    leaves out, and may die of a file with which a start would succeed: it gets an intermediate text first.
    """
    steps: list[Step] = []
    if not ENGINES[reload.engine].reads_config_on_signal:
        steps += [step for step in writes if step.before != step.after]
        steps.append(reload)
        return steps

    last = {step.path: step for step in writes}
    for step in writes:
        if step is not last[step.path]:
            steps.append(step)
            continue

        route = engine.spec.find_route(engine, step.path, in_force, step.after)
        first = route.texts[0]
        if step.before != first:
            steps.append(replace(step, after=first, passing=route.passing))
        steps.append(reload)
        for before, after in pairwise(route.texts):
            steps.append(replace(step, before=before, after=after, passing=route.passing))
    return steps


def postpone(engine: EngineState) -> NotYetError:
    """Return the error that postpones the restart of an engine with containers in state CREATED."""
    names = list_some([each[:12] for each in sorted(engine.creating)])
    return NotYetError(
        f"restart {engine.title} yet (it has created containers that are not started: {names})",
        remedy="wait for run to find none, or restart it at once with toolkit-installer reconcile; where "
        "no run waits, run install again",
    )
