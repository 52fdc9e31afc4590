"""The node as a whole: what is held of others, and what stands against any plan."""

from collections.abc import Iterable, Iterator
from typing import Final

from installer.decide.advisories import advice
from installer.decide.engines import ENGINES
from installer.decide.engines.model import RuntimeEntry
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import Facts, names_of
from installer.decide.options import Options, RestartMode
from installer.decide.part import TRY_AGAIN, Part
from installer.decide.parts import nri
from installer.decide.parts.cdi import OWNER
from installer.decide.rows import Record

ID: Final = "node"


def install(facts: Facts, entries: Iterable[RuntimeEntry]) -> Part:
    """Return what stands against an install, and the rows that it has no part for."""
    held = facts.held
    planned = {OWNER, nri.ID, *(engine.name for engine in facts.engines)}
    others = tuple(row for row in held.configs if row.engine not in planned)
    return Part(
        ID,
        rows=Record(directories=held.directories, engines=held.engines, configs=others),
        notes=(*facts.notes, *advice(facts.version)),
        obstacles=(*facts.obstacles, *_renamed(facts, {entry.name for entry in entries})),
    )


def _renamed(facts: Facts, names: set[str]) -> Iterator[InstallerError]:
    """Yield why a runtime cannot go, or be renamed: containers that it started need the one it has."""
    by_cdi = Remedy(
        "stop them, run toolkit-installer uninstall, then try again; or keep ", Option("mode", "runtime")
    )
    renamed = Remedy("stop them first, or keep ", Option("runtime-name"), " as it was")
    for row in facts.held.engines:
        for name, binary in row.runtimes:
            used = [each for each in facts.running if (each.engine, each.binary) == (row.name, binary)]
            if name not in names and used:
                yield InstallerError(
                    f"take the runtime {name} away from {row.title} (it runs {names_of(used)})",
                    remedy=renamed if names else by_cdi,
                    code="in-use",
                )


def undo(facts: Facts, options: Options) -> Part:
    """Return what stands against an undo, and what cannot be restored."""
    idle = f"stopped containers that need our runtime to start again: {', '.join(facts.idle)}"
    return Part(
        ID,
        notes=(*facts.notes, *([idle] if facts.idle else [])),
        obstacles=(*_unreachable(facts, options.restart_mode), *_defaults_of_others(facts)),
        needed=tuple(_lost(facts, options)),
    )


def _lost(facts: Facts, options: Options) -> Iterator[InstallerError]:
    """Yield which files that we wrote whole cannot be given back: what stood there is lost."""
    for row in facts.held.configs:
        now = facts.contents[row.path]
        if row.path in facts.lost and row.syntax is None and now is not None and now.digest in row.ours:
            copy = options.layout.backups / (row.original.digest if row.original else "")
            yield InstallerError(
                f"give {row.path} back (its saved copy {copy} is missing or damaged)",
                remedy=f"put the file there that belongs there, or remove it, then {TRY_AGAIN}",
                code="backup-lost",
            )


def _unreachable(facts: Facts, restart_mode: RestartMode) -> Iterator[InstallerError]:
    """Yield why an engine that runs cannot be asked; a binary must outlive the config that names it.

    One that is restarted may be healed by just that, and has to answer afterwards.
    """
    held = {engine.name for engine in facts.held.engines}
    for engine in facts.engines if restart_mode is not RestartMode.NONE else ():
        by_signal = ENGINES[engine.name].reload is ReloadMethod.HUP
        if engine.name in held and by_signal and engine.serving is None and not engine.stopped:
            yield InstallerError(
                f"prove that {engine.title} has let go of our runtimes ({engine.silence})",
                remedy=f"make it answer, then {TRY_AGAIN}",
                code="engine-not-proven",
            )


def _defaults_of_others(facts: Facts) -> Iterator[InstallerError]:
    """Yield why an engine that was told by its owner to start all pods with our runtime cannot lose it.

    No pod would start any more, that of the next installer included.
    """
    for row in facts.held.engines:
        found = next((each for each in facts.engines if each.name == row.name), None)
        serving = found.serving if found and ENGINES[row.name].finds else None
        if serving is not None and serving.default in {name for name, _ in row.runtimes}:
            yield InstallerError(
                f"take the toolkit away from {row.title} (its default runtime is {serving.default})",
                remedy=f"start {row.title} without --default-runtime, then {TRY_AGAIN}",
                code="runtime-needed",
            )
