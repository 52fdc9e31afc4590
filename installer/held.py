"""What is held, a line for each thing: how all that we have installed stands on the disk."""

from collections.abc import Iterator
from typing import Final

from installer import looked
from installer.decide.configs import relocated, text_of
from installer.decide.data import dataclass, replace
from installer.decide.edits import unheld
from installer.decide.errors import InstallerError
from installer.decide.inode import Kind
from installer.decide.layout import Layout, cdi_hook
from installer.decide.options import GPU_KIND, Options
from installer.decide.parts.toolkit import VERSIONS
from installer.decide.rows import ConfigRow, EngineRow, Record, ToolkitRow
from installer.decide.toolkit_config import edited_keys
from installer.host.devices import is_read_only
from installer.host.files import NOEXEC, Host
from installer.record import own_toolkit
from installer.record.access import exposed
from installer.record.ledger import is_lost, ledger_lost
from installer.record.lost import lost_specification, named_toolkits
from installer.record.refused import lacking
from installer.record.room import crowded, mounted
from installer.record.theirs import is_theirs

REPAIR: Final = "install puts it right"
NOT_STARTED: Final = f"{NOEXEC}: no program of the toolkit starts; mount it with -o remount,exec"
CROWDED: Final = "full: no container could be started, each has its state there; make room"
READ_ONLY: Final = "read-only: a repair or an uninstall would fail; mount it with -o remount,rw"
CORRECT: Final = "correct them before its next start"
IN_FORCE: Final = ", our keys in force"
THEIRS: Final = (
    "not ours: another installer has put its toolkit there; uninstall leaves it that and the runtimes that "
    "start it, install takes the node over again"
)
BEFORE: Final = "as it was before the install, which was cut short, or its undo was"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is held; ``good`` says whether it is as it should be."""

    what: str
    state: str
    good: bool = True
    later: bool = False  # what will go wrong, as at an engine's next start: the node is ready until then


def lines(host: Host, options: Options, held: Record | None, *, deep: bool, ignores: bool) -> Iterator[Line]:
    """Yield what is held, or, without a ledger, what is left of an installation; ``deep`` reads programs.

    What others did to configs comes later, for a ``run`` that ``ignores`` drift.
    """
    if held is None:
        return _without_ledger(host, options)
    return _of_ledger(host, options.layout, held, deep=deep, ignores=ignores)


def _of_ledger(host: Host, layout: Layout, held: Record, *, deep: bool, ignores: bool) -> Iterator[Line]:
    yield from (Line(*each) for each in looked.last_act(held))
    if held.toolkit is not None:
        yield from _toolkit(host, layout, held, held.toolkit, deep=deep)
    elif is_theirs(host, layout):
        yield Line(str(layout.toolkit), THEIRS, good=False)
    if unclaimed := host.names(layout.unclaimed):
        state = f"{len(unclaimed)} configs as they were before an install whose ledger is lost: see uninstall"
        yield Line(str(layout.unclaimed), state)
    written = (row.path.parent for row in held.configs if row.written)
    places = dict.fromkeys((layout.install_dir, *written))
    yield from (
        Line(str(path), READ_ONLY, good=False, later=True) for path in places if is_read_only(host, path)
    )
    if NOEXEC in mounted(host, layout.toolkit):
        yield Line(str(layout.toolkit), NOT_STARTED, good=False)
    for path in crowded(host, held.served):
        yield Line(str(path), CROWDED, good=False)
    for path, _, flaw in exposed(host, layout, held):
        yield Line(str(path), f"{flaw}: {REPAIR}", good=False)
    yield from _config_lines(host, layout, held, ignores=ignores)
    if held.cdi is not None:
        yield Line(
            ", ".join(held.cdi.engines) or "no engine", "takes devices by CDI, as it was asked: not changed"
        )
        if held.cdi.lacking:
            yield Line(GPU_KIND, f"no CDI specification: {held.cdi.lacking}")
    for engine in held.engines:
        if state := engine.pending and f"pending since the last install: {engine.pending}":
            yield Line(engine.name, state, good=not engine.restart_due)


def _toolkit(host: Host, layout: Layout, held: Record, row: ToolkitRow, *, deep: bool) -> Iterator[Line]:
    state = _link(host, layout, row)
    yield Line(str(layout.toolkit), state or f"toolkit {row.version}", good=not state)
    yield from (Line(*each) for each in own_toolkit.lines(host, row))
    damaged = dict(own_toolkit.damaged(host, layout, row, deep=deep))
    runtime = cdi_hook(layout) if held.cdi else layout.toolkit / "nvidia-container-runtime"
    if not (state or host.exists(runtime)):  # a link that is as installed may lead to nothing
        damaged.setdefault(runtime.name, "missing")
    for name, flaw in damaged.items():
        yield Line(str(layout.toolkit / name), f"{flaw}: {REPAIR}", good=False)
    file = host.read(layout.config)
    if file is not None:
        for key in edited_keys(row.rendered, text_of(file, layout.config), name=str(layout.config)):
            yield Line(str(layout.config), f"{key} edited by an administrator")


def _link(host: Host, layout: Layout, row: ToolkitRow) -> str:
    """Return what is wrong with the link that leads to the toolkit; "" where nothing is."""
    target = host.link_target(layout.toolkit)
    if target == f"{VERSIONS}{row.version}":
        return (
            "" if host.exists(layout.version(row.version)) else f"leads to {target}, which is gone: {REPAIR}"
        )
    if target is not None:
        return f"not ours: somebody has it lead to {target}: {REPAIR}"
    there = host.kind(layout.toolkit, last=False) is not Kind.ABSENT
    return f"not ours: somebody has put something else there: {REPAIR}" if there else f"missing: {REPAIR}"


def _config_lines(host: Host, layout: Layout, held: Record, *, ignores: bool) -> Iterator[Line]:
    """Yield each config, and before those of an engine what they do not come to any more."""
    engines = {engine.name: engine for engine in held.engines} if held.finished else {}
    lacks: dict[str, tuple[str, ...]] = {}
    for row in held.configs:
        if row.engine in engines and row.engine not in lacks:
            fatal, lacks[row.engine] = _lacking(host, engines[row.engine], held)
            if fatal:
                state = f"would not start with the configs that it has now ({fatal}): {CORRECT}"
                yield Line(row.engine, state, good=False, later=True)
            for lack in lacks[row.engine]:
                state = f"drifted: {lack} in its configs: {REPAIR}"
                yield Line(row.engine, state, good=False, later=ignores)
        line = _config_line(host, layout, row, finished=held.finished)
        told = line.good and lacks.get(row.engine)
        line = replace(line, later=ignores and not line.good and row.engine in engines)
        yield replace(line, state=line.state.removesuffix(IN_FORCE)) if told else line


def _lacking(host: Host, engine: EngineRow, held: Record) -> tuple[str, tuple[str, ...]]:
    try:
        return lacking(host, engine, [row for row in held.configs if row.engine == engine.name])
    except InstallerError:
        return "", ()  # told where the config is


def _config_line(host: Host, layout: Layout, row: ConfigRow, *, finished: bool) -> Line:
    try:
        file = host.read(row.path)
        if file is None and row.original is None and not finished:
            return Line(str(row.path), BEFORE, good=False)
        if file is None:
            return Line(str(row.path), "removed by somebody else", good=False)
        ours = file.digest in row.ours
        if (ours or row.syntax) and row.original and is_lost(host, layout, row):
            copy = layout.backups / row.original.digest
            remedy = REPAIR if row.syntax else "put back by hand what stood there before, then uninstall"
            return Line(str(row.path), f"its saved copy {copy} is missing or damaged: {remedy}", good=False)
        if ours:
            return Line(str(row.path), "as we wrote it")
        if row.syntax is None:
            return Line(str(row.path), "replaced by somebody else", good=False)
        edits = relocated(row, file)
        lost = unheld(text_of(file, row.path), edits, row.syntax, name=str(row.path))
    except InstallerError as error:
        return Line(str(row.path), error.problem, good=False)
    if not finished and row.original and file.digest == row.original.digest:
        return Line(str(row.path), BEFORE, good=False)
    if not finished:  # nobody knows which of them we have taken out ourselves
        state = "left between two texts by what was cut short, and edited by somebody else since"
        return Line(str(row.path), state, good=False)
    if lost:
        keys = ", ".join(dict.fromkeys(".".join(edit.key) for edit in lost))
        return Line(str(row.path), f"drifted: {keys} changed by somebody else", good=False)
    return Line(str(row.path), f"edited by somebody else{IN_FORCE if row.edits else ''}")


def _without_ledger(host: Host, options: Options) -> Iterator[Line]:
    """Yield what is left of an installation without its ledger, and the configs that name our toolkit."""
    if ledger_lost(host, options.layout):
        state = "somebody has removed it: install or uninstall goes on by what configs show to be ours"
        yield Line(str(options.layout.ledger), state, good=False)
    if host.kind(options.layout.toolkit, last=False) is not Kind.DIRECTORY:  # else NVIDIA's
        row = lost_specification(host, options.layout)
        named = named_toolkits(host, options.places).get(options.install_dir, ())
        state = f"names {options.layout.toolkit}, but there is no ledger: install or uninstall puts it right"
        for path in (*named, *((row.path,) if row else ())):
            yield Line(str(path), state, good=False)
