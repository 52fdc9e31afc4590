"""The plan for the NRI plugin beside ``run``: the plugin needs a capable engine, and changes none."""

from contextlib import suppress

from installer.engines.config_texts import DryRun, predict_from_texts
from installer.errors import InstallerError
from installer.model.engine import EngineState
from installer.model.facts import Facts, Record
from installer.model.nri import refuse_dropping
from installer.model.options import Options
from installer.model.steps import Part, PartId


def install(facts: Facts, options: Options, dry_run: DryRun = predict_from_texts) -> Part:
    """Plan the part of the plugin, with obstacles if every engine would start containers without devices.

    An engine of unknown version gives the version to the plugin later. ``dry_run`` makes the dry run for the
    state of NRI in a config; after an install only the registration of the plugin counts.
    """
    if not options.serves_nri:
        return Part(PartId.NRI)
    obstacles = []
    for engine in facts.engines:
        problem = _explain_unusable(engine, None if facts.record.nri else dry_run)
        if problem is not None:
            obstacles.append(problem)
    if len(obstacles) < len(facts.engines):
        obstacles = []  # an engine can serve the plugin

    # The ledger has to record the plugin: a plugin that was killed reports nothing.
    rows = Record(nri=options.nri.socket)
    return Part(PartId.NRI, rows=rows, obstacles=tuple(obstacles))


def _explain_unusable(engine: EngineState, dry_run: DryRun | None) -> InstallerError | None:
    """Explain why an engine cannot serve the plugin; None if the engine can, or may."""
    nri_name = engine.kind.nri_name
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
        if dry_run is not None and dry_run(engine, {}).nri is False:
            problem = f"serve {engine.title} by NRI (its config has NRI switched off)"
            remedy = f"switch it on there, restart {engine.title}, or use another mode"
            return InstallerError(problem, remedy=remedy, code="nri-unusable")
    return None
