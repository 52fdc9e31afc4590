"""What is installed, drifted or pending: by the ledger, the files and the last check of ``run``."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import is_lost, ledger_lost, read_record
from installer.change.lost import elsewhere, left_behind, lost_specification
from installer.config_text import Edit, unheld
from installer.engines.config_edits import relocated, text_of
from installer.engines.dependencies import list_crowded, mount_options
from installer.engines.dry_run import compare_configs
from installer.errors import InstallerError
from installer.host.devices import is_read_only
from installer.host.files import NOEXEC, Host
from installer.host.locks import is_held_pidfile
from installer.lifecycle import readiness
from installer.lifecycle.readiness import LastCheck
from installer.metrics.publish import is_foreign
from installer.model.files import Kind
from installer.model.options import GPU_KIND, Options
from installer.model.paths import VERSIONS, Layout, cdi_hook
from installer.model.record import ConfigRow, Record, ToolkitRow
from installer.nri.state import lines as nri_lines
from installer.payload.config_toml import edited_keys
from installer.payload.installed import damaged as damaged_files
from installer.payload.installed import exposed, is_theirs, still_ours
from installer.payload.installed import lines as toolkit_lines

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
LAST_CHECK: Final = "last look"
RECONCILE: Final = "toolkit-installer reconcile"


class Line(Struct, frozen=True):
    """One thing that is installed; ``good`` says whether it is as it should be.

    What goes wrong ``later``, as at an engine's next start, keeps no node from being ready.
    """

    what: str
    state: str
    good: bool
    later: bool = False


class Installation(Struct, frozen=True):
    """What is installed on a node, and what the last check said of it.

    ``files`` are the lines of what lies on the disk; ``lines`` those of ``run`` and the NRI plugin, too.
    """

    record: Record | None
    last_check: LastCheck | None
    files: tuple[Line, ...]
    lines: tuple[Line, ...]

    @property
    def obstacle(self) -> str:
        """What keeps the node from being ready, "" where nothing does."""
        return next(
            (f"{each.what}: {each.state}" for each in self.lines if not (each.good or each.later)), ""
        )


def read_installation(host: Host, options: Options, *, deep: bool = False) -> Installation:
    """Return what is installed, or, without a ledger, what is left of it; ``deep`` reads programs.

    Raises:
        InstallerError: the ledger cannot be read, or it is not plain which installation is meant.
    """
    options = elsewhere(host, options, tell=False)
    layout, seen = options.layout, readiness.read_check(host, options.state_file)
    if (record := read_record(host, layout)) is None:
        files = lines = tuple(_without_ledger(host, options))
    else:
        record = still_ours(host, layout, record)
        ignores = seen is not None and seen.current and seen.ignores
        files = tuple(file_lines(host, layout, record, deep=deep, ignores=ignores))
        lines = (*check_lines(seen), *files)  # what run says is more than files tell
    plugin = (Line(*each) for each in nri_lines(host, options.nri, record))
    return Installation(record, seen, files, (*lines, *plugin))


def file_lines(host: Host, layout: Layout, record: Record, *, deep: bool, ignores: bool) -> Iterator[Line]:
    """Yield what is installed; what others did to configs comes later where ``run`` ``ignores`` drift."""
    yield from last_act(record)
    if record.toolkit is not None:
        yield from _toolkit(host, layout, record, record.toolkit, deep=deep)
    elif is_theirs(host, layout):
        yield Line(str(layout.toolkit), THEIRS, good=False)
    if unclaimed := host.names(layout.unclaimed):
        state = f"{len(unclaimed)} configs as they were before an install whose ledger is lost: see uninstall"
        yield Line(str(layout.unclaimed), state, good=True)
    written = (row.path.parent for row in record.configs if row.written)
    places = dict.fromkeys((layout.install_dir, *written))
    yield from (
        Line(str(path), READ_ONLY, good=False, later=True) for path in places if is_read_only(host, path)
    )
    for path in (path for path in record.published if is_foreign(host, path)):
        yield Line(str(path), "not from us: it is not written; move it away", good=True)
    if NOEXEC in mount_options(host, layout.toolkit):
        yield Line(str(layout.toolkit), NOT_STARTED, good=False)
    for path in list_crowded(host, record.served):
        yield Line(str(path), CROWDED, good=False)
    for path, _, flaw in exposed(host, layout, record):
        yield Line(str(path), f"{flaw}: {REPAIR}", good=False)
    yield from _config_lines(host, layout, record, ignores=ignores)
    if record.cdi is not None:
        yield Line(
            ", ".join(record.cdi.engines) or "no engine",
            "takes devices by CDI, as it was asked: not changed",
            good=True,
        )
        if record.cdi.lacking:
            yield Line(GPU_KIND, f"no CDI specification: {record.cdi.lacking}", good=True)
    for engine in record.engines:
        if state := engine.pending and f"pending since the last install: {engine.pending}":
            yield Line(engine.name, state, good=not engine.restart_due)


def _toolkit(
    host: Host, layout: Layout, record: Record, toolkit: ToolkitRow, *, deep: bool
) -> Iterator[Line]:
    state = _link(host, layout, toolkit)
    yield Line(str(layout.toolkit), state or f"toolkit {toolkit.version}", good=not state)
    yield from (Line(*each) for each in toolkit_lines(host, toolkit))
    damaged = dict(damaged_files(host, layout, toolkit, deep=deep))
    runtime = cdi_hook(layout) if record.cdi else layout.toolkit / "nvidia-container-runtime"
    if not (state or host.exists(runtime)):  # a link that is as installed may lead to nothing
        damaged.setdefault(runtime.name, "missing")
    for name, flaw in damaged.items():
        yield Line(str(layout.toolkit / name), f"{flaw}: {REPAIR}", good=False)
    file = host.read(layout.config)
    if file is not None:
        for key in edited_keys(toolkit.rendered, text_of(file, layout.config), name=str(layout.config)):
            yield Line(str(layout.config), f"{key} edited by an administrator", good=True)


def _link(host: Host, layout: Layout, toolkit: ToolkitRow) -> str:
    """Return what is wrong with the link that leads to the toolkit; "" where nothing is."""
    target = host.link_target(layout.toolkit)
    if target == f"{VERSIONS}{toolkit.version}":
        return (
            ""
            if host.exists(layout.version(toolkit.version))
            else f"leads to {target}, which is gone: {REPAIR}"
        )
    if target is not None:
        return f"not ours: somebody has it lead to {target}: {REPAIR}"
    there = host.kind(layout.toolkit, last=False) is not Kind.ABSENT
    return f"not ours: somebody has put something else there: {REPAIR}" if there else f"missing: {REPAIR}"


def _config_lines(host: Host, layout: Layout, record: Record, *, ignores: bool) -> Iterator[Line]:
    """Yield each config, and before those of an engine what they do not come to any more."""
    engines = {engine.name: engine for engine in record.engines} if record.finished else {}
    lacks: dict[str, tuple[str, ...]] = {}
    in_force: dict[str, Callable[[Edit], bool]] = {}
    for row in record.configs:
        if row.engine in engines and row.engine not in lacks:
            fatal, lacks[row.engine], refused = "", (), None
            with suppress(InstallerError):  # told where the config is
                engine = engines[row.engine]
                fatal, lacks[row.engine], in_force[row.engine], refused = compare_configs(
                    host, engine, record
                )
            if fatal:
                state = f"would not start with the configs that it has now ({fatal}): {CORRECT}"
                yield Line(row.engine, state, good=False, later=True)
            for lack in lacks[row.engine]:
                state = f"drifted: {lack} in its configs: {refused or REPAIR}"
                yield Line(row.engine, state, good=False, later=ignores)
        known = in_force.get(row.engine, lambda _: False)
        line = _config_line(host, layout, row, known, finished=record.finished)
        told = line.good and lacks.get(row.engine)
        line = replace(line, later=ignores and not line.good and row.engine in engines)
        yield replace(line, state=line.state.removesuffix(IN_FORCE)) if told else line


def _config_line(
    host: Host, layout: Layout, row: ConfigRow, in_force: Callable[[Edit], bool], *, finished: bool
) -> Line:
    try:
        file = host.read(row.path)
        if file is None and row.original is None and not finished:
            return Line(str(row.path), BEFORE, good=False)
        if file is None:
            moved = bool(row.edits) and all(map(in_force, row.edits))
            return Line(str(row.path), f"removed by somebody else{IN_FORCE if moved else ''}", good=moved)
        ours = file.digest in row.ours
        if (ours or row.syntax) and row.original and is_lost(host, layout, row):
            copy = layout.backups / row.original.digest
            remedy = REPAIR if row.syntax else "put back by hand what stood there before, then uninstall"
            return Line(str(row.path), f"its saved copy {copy} is missing or damaged: {remedy}", good=False)
        if ours:
            return Line(str(row.path), "as we wrote it", good=True)
        if row.syntax is None:
            return Line(str(row.path), "replaced by somebody else", good=False)
        edits = relocated(row, file)
        gone = unheld(text_of(file, row.path), edits, row.syntax, name=str(row.path))
        lost = [edit for edit in gone if not in_force(edit)]
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
    return Line(str(row.path), f"edited by somebody else{IN_FORCE if row.edits else ''}", good=True)


def _without_ledger(host: Host, options: Options) -> Iterator[Line]:
    """Yield what is left of an installation without its ledger, and the configs that name our toolkit."""
    if ledger_lost(host, options.layout):
        state = "somebody has removed it: install or uninstall goes on by what configs show to be ours"
        yield Line(str(options.layout.ledger), state, good=False)
    row = lost_specification(host, options.layout)
    state = f"names {options.layout.toolkit}, but there is no ledger: install or uninstall puts it right"
    for path in (*left_behind(host, options), *((row.path,) if row else ())):
        yield Line(str(path), state, good=False)


def check_lines(seen: LastCheck | None) -> Iterator[Line]:
    """Yield what the last check saw."""
    if seen is None:
        return
    if not seen.current:
        state = f"at {seen.time}, by a run that has ended (pid {seen.pid}): nobody watches this node"
        yield Line(LAST_CHECK, state, good=True)
        return
    if seen.problem:
        yield Line(LAST_CHECK, f"{seen.time}: cannot {seen.problem}; {seen.remedy}", good=False)
    serves = "takes devices by CDI" if seen.by_cdi else "serves our runtimes"
    for engine in seen.engines:
        if engine.serves:
            yield Line(engine.name, f"{serves}, since {engine.since}", good=True)
        elif engine.serves is not None:
            state = f"did not serve our runtimes at the last look ({engine.differs}), since {engine.since}"
            yield Line(engine.name, f"{state}: {RECONCILE}", good=False)
        if engine.refusal is not None:
            yield Line(engine.name, str(engine.refusal), good=False, later=True)
    if seen.generation is not None:
        yield Line(GPU_KIND, str(seen.generation), good=False, later=True)
    if seen.doing:
        yield Line("repair", f"under way since {seen.time}: {', '.join(seen.doing)}", good=True)


def last_act(record: Record) -> Iterator[Line]:
    """Yield what the last install or undo has left unfinished, or could not do."""
    nothing = replace(record, failed=None).empty
    if record.published and nothing:
        what = ", ".join(map(str, record.published))
        yield Line(what, "told of an install that failed; nothing is installed", good=False)
    # What is told of an install that failed holds nothing of the node.
    rolled_back = nothing and (record.failed is not None or bool(record.published))
    if not record.finished and not rolled_back:
        state = "the last install or undo failed or was cut short; run install or uninstall again"
        yield Line("unfinished", state, good=False)
    if record.left and record.finished:
        state = f"did not give everything back ({record.left}): run uninstall again, or install"
        yield Line("last undo", state, good=False)
    if record.failed is not None:
        state = f"failed and is not tried again as it is: {record.failed.problem}"
        yield Line("last plan", state, good=False)


def not_proven(host: Host, pid_file: PurePosixPath, record: Record | None, seen: LastCheck | None) -> str:
    """Return why a node is not ready that has nothing else to say against it."""
    if record is None:
        return "nothing is installed: wait for run to finish, or see its log"
    if not is_held_pidfile(host.local_path(pid_file)):
        return (
            f"no run waits on this node (nobody holds {pid_file}): install alone needs none; else start run, "
            "or see the log of the last one"
        )
    unasked = [each.name for each in seen.engines if each.serves is None] if seen and seen.current else []
    if unasked:
        return f"nobody asked {' or '.join(unasked)} what it serves (it does not answer, or has an OCI hook)"
    proof = "take devices by CDI" if record.cdi else "serve our runtimes"
    return f"run has not proven yet that the engines {proof}: wait, or see its log"
