"""The plan for the NRI plugin beside ``run``: the plugin needs a capable engine, and changes none."""

from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from installer.engines.config_edits import Ask, texts_alone, withdraw
from installer.errors import InstallerError
from installer.model.engine import EngineState
from installer.model.facts import Facts, Record
from installer.model.nri import refuse_dropping
from installer.model.options import Options
from installer.model.steps import Part, for_reason

ID: Final = "nri"
GONE: Final = "a script of 0.2.0, which no engine starts now"


def install(facts: Facts, options: Options, ask: Ask = texts_alone) -> Part:
    """Plan the part of the plugin, with obstacles if every engine would start containers without devices.

    An engine of unknown version gives the version to the plugin later. ``ask`` makes the dry run for the
    state of NRI in a config; after an install only the registration of the plugin counts.
    """
    part = _remove_programs(facts)
    if not options.serves_nri:
        return part
    dry_run = None if facts.record.nri else ask
    obstacles = []
    for engine in facts.engines:
        problem = _explain_unusable(engine, dry_run)
        if problem is not None:
            obstacles.append(problem)
    if len(obstacles) < len(facts.engines):
        obstacles = []  # an engine can serve the plugin

    # The ledger has to record the plugin: a plugin that was killed reports nothing.
    rows = Record(nri=options.nri.socket)
    return replace(part, rows=rows, obstacles=tuple(obstacles))


def undo(facts: Facts) -> Part:
    """Plan the removal of the programs of 0.2.0, also if other changes of ours stay."""
    rows = tuple(row for row in facts.record.configs if row.engine == ID)
    return replace(_remove_programs(facts), in_progress=rows)


def _remove_programs(facts: Facts) -> Part:
    """Plan the removal of the programs by which an engine started the plugin of 0.2.0."""
    steps = []
    for row in facts.record.configs:
        if row.engine != ID:
            continue
        step = withdraw(row, facts).step
        if step is not None:
            # A roll-back does not restore the program: under a temporary name it would keep the engine from
            # starting.
            steps.append(replace(step, unwanted=True))
    return Part(ID, for_reason(GONE, steps))


def _explain_unusable(engine: EngineState, ask: Ask | None) -> InstallerError | None:
    """Explain why an engine cannot serve the plugin; None if the engine can, or may."""
    nri_name = engine.spec.nri_name
    if not nri_name:
        problem = f"serve {engine.title} by NRI (it has no NRI)"
        remedy = "use another mode for it: its containers take devices by --device"
        return InstallerError(problem, remedy=remedy, code="nri-unusable")
    try:
        if engine.version:
            refuse_dropping(nri_name, ".".join(map(str, engine.version)))
    except InstallerError as error:
        return error
    with suppress(InstallerError):  # a config that is not understood: the registration will show
        if ask is not None and ask(engine, {}).nri is False:
            problem = f"serve {engine.title} by NRI (its config has NRI switched off)"
            remedy = f"switch it on there, restart {engine.title}, or use another mode"
            return InstallerError(problem, remedy=remedy, code="nri-unusable")
    return None
