"""The NRI plugin beside ``run``: it needs an engine that does what it asks, and changes nothing of it.

Where it is asked for, a program is put on the node that the engine starts by itself and that leads to it.
"""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts, Facts, PluginFile
from installer.decide.inode import EXECUTE, File, Meta
from installer.decide.nri.relay import leads, script
from installer.decide.nri.served import refuse_dropping
from installer.decide.options import Options
from installer.decide.part import Part
from installer.decide.parts.cdi import restored
from installer.decide.rows import ConfigRow, Record
from installer.decide.steps import WriteConfig

ID: Final = "nri"
# By process: what an engine calls itself towards a plugin. One that is not here has no NRI.
CALLED: Final = {"containerd": "containerd", "crio": "cri-o"}


NEW: Final = "the engine is to start its way to the NRI plugin by itself"
CHANGED: Final = "it is not what leads to the NRI plugin"
RENEWED: Final = "the engine, or the way to the NRI plugin, is another one by now"
UNASKED: Final = "no engine is to start a way to the NRI plugin any more"
ENDS: Final = "the NRI plugin ends"


def install(facts: Facts, options: Options) -> Part:
    """Return what stands against the plugin: every engine of the node would start containers without devices.

    An engine whose version nobody knows yet tells it to the plugin.
    """
    if not options.serves_nri:
        return _without(facts, UNASKED)
    against = [*map(_against, facts.engines)]
    obstacles = tuple(each for each in against if each) if all(against) else ()
    if facts.plugin is None:
        part = _without(facts, UNASKED)
    else:
        part = _with(facts, facts.plugin, facts.plugin.path, options) if facts.plugin.path else Part(ID)
        obstacles = (*obstacles, *facts.plugin.lacking)
    # That a plugin is to be there the ledger has to tell: one that was killed tells nothing.
    rows = replace(part.rows, nri=options.nri.socket)
    return replace(part, rows=rows, obstacles=(*obstacles, *part.obstacles))


def undo(facts: Facts) -> Part:
    """Return how the program goes, also where something else of ours stays: nobody is there any more."""
    return replace(_without(facts, ENDS), in_progress=_held(facts))


def _held(facts: Facts) -> tuple[ConfigRow, ...]:
    return tuple(row for row in facts.held.configs if row.engine == ID)


def _without(facts: Facts, why: str, but: PurePosixPath | None = None) -> Part:
    """Return how every program of ours goes, ``but`` one."""
    going = [step for row in _held(facts) if row.path != but for step in restored(row, facts)]
    steps = tuple(replace(step, before=_plain(step.before), executable=True) for step in going)
    return Part(ID, steps, (why,) * len(steps))


def _with(facts: Facts, plugin: PluginFile, path: PurePosixPath, options: Options) -> Part:
    """Return how the program comes to its place.

    It is made executable only there: with an executable of any other name beside it the engine would not
    start, the name under which a file is written included (engine-facts.md#nri-preinstalled).
    """
    others = _without(facts, UNASKED, but=path)
    held, now = facts.held.config(path), facts.contents[path]
    plain = _plain(now)
    known = now is not None and leads(now.content.decode(errors="replace"), options.nri)
    ours = known or (held is not None and now is not None and now.digest in held.ours)
    # Where the engine does not run for the moment nobody can tell its command line.
    stays = plain is not None and known and not plugin.engine
    text = plain.content if plain and stays else script(options.nri, plugin.engine).encode()
    after = File(text, plain.meta if plain else Meta())
    if held is None and now is not None and not ours:
        taken = InstallerError(
            f"let the engine start {path} (somebody else has put a plugin of that name there)",
            remedy=Remedy("choose another ", Option("nri-name"), " or ", Option("nri-index")),
            code="nri-unusable",
        )
        return replace(others, obstacles=(taken,))
    row = ConfigRow(ID, path, None, None, (after.digest,), (), facts.targets.get(path))
    write = WriteConfig(ID, path, plain, after, executable=True)
    steps = [] if now is not None and now.digest == after.digest and _executable(now) else [write]
    renewed = ours and now is not None and now.digest != after.digest
    return replace(
        others,
        steps=(*others.steps, *steps),
        why=(*others.why, *((RENEWED if renewed else CHANGED if now else NEW) for _ in steps)),
        rows=Record(configs=(row,)),
    )


def _plain(file: File | None) -> File | None:
    return file and replace(file, meta=replace(file.meta, mode=file.meta.mode & ~EXECUTE))


def _executable(file: File) -> bool:
    return file.meta.mode & EXECUTE == EXECUTE


def _against(engine: EngineFacts) -> InstallerError | None:
    called = CALLED.get(ENGINES[engine.name].process, "")
    if not called:
        return InstallerError(
            f"serve {engine.title} by NRI (it has no NRI)",
            remedy="use another mode for it: its containers take devices by --device",
            code="nri-unusable",
        )
    if not engine.version:
        return None
    try:
        refuse_dropping(called, ".".join(map(str, engine.version)))
    except InstallerError as error:
        return error
    return None
