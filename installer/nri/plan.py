"""The NRI plugin beside ``run``: it needs an engine that does what it asks, and changes nothing of it."""

from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from installer.engines.config_edits import Ask, texts_alone, withdraw
from installer.errors import InstallerError
from installer.model.facts import EngineState, Facts, Record
from installer.model.nri import refuse_dropping
from installer.model.options import Options
from installer.model.steps import Part, for_reason

ID: Final = "nri"
GONE: Final = "a script of 0.2.0, which no engine starts now"


def install(facts: Facts, options: Options, ask: Ask = texts_alone) -> Part:
    """Return what stands against the plugin: every engine of the node would start containers without devices.

    An engine whose version is not known yet gives it to the plugin. ``ask`` tells whether its config has NRI;
    once the plugin serves, what counts is whether the engine has taken it.
    """
    part = _remove_programs(facts)
    if not options.serves_nri:
        return part
    against = [_explain_unusable(engine, None if facts.held.nri else ask) for engine in facts.engines]
    # That a plugin is to be there the ledger has to tell: one that was killed tells nothing.
    rows = Record(nri=options.nri.socket)
    return replace(part, rows=rows, obstacles=tuple(each for each in against if each) if all(against) else ())


def undo(facts: Facts) -> Part:
    """Return how the program of 0.2.0 goes, also where something else of ours stays."""
    return replace(
        _remove_programs(facts), in_progress=tuple(row for row in facts.held.configs if row.engine == ID)
    )


def _remove_programs(facts: Facts) -> Part:
    """Return how the programs go by which 0.2.0 had an engine start its way to the plugin."""
    rows = (row for row in facts.held.configs if row.engine == ID)
    # None comes back, whatever fails: one that has not its own name yet would keep the engine from starting.
    steps = tuple(replace(step, unwanted=True) for row in rows if (step := withdraw(row, facts).step))
    return Part(ID, for_reason(GONE, steps))


def _explain_unusable(engine: EngineState, ask: Ask | None) -> InstallerError | None:
    if not (nri_name := engine.spec.nri_name):
        problem = f"serve {engine.title} by NRI (it has no NRI)"
        remedy = "use another mode for it: its containers take devices by --device"
        return InstallerError(problem, remedy=remedy, code="nri-unusable")
    try:
        if engine.version:
            refuse_dropping(nri_name, ".".join(map(str, engine.version)))
    except InstallerError as error:
        return error
    with suppress(InstallerError):  # its config is not understood: the plugin is registered or not
        if ask is not None and ask(engine, {}).nri is False:
            problem = f"serve {engine.title} by NRI (its config has NRI switched off)"
            remedy = f"switch it on there, restart {engine.title}, or use another mode"
            return InstallerError(problem, remedy=remedy, code="nri-unusable")
    return None
