"""What is installed, drifted or pending: by the ledger, the files and the last check of ``run``."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import is_foreign, is_ledger_lost, read_record, read_saved
from installer.change.unrecorded import find_install_dir, find_left_behind, find_lost_specification
from installer.config_text import Edit
from installer.config_text.change import list_missing
from installer.engines import ENGINES
from installer.engines.config_edits import relocate_edits, text_of
from installer.engines.dependencies import list_crowded, mount_options
from installer.engines.dry_run import Comparison, compare_configs
from installer.engines.reloading import PENDING
from installer.engines.templates import find_template_flaw
from installer.errors import InstallerError
from installer.host.files import NOEXEC, Host, is_read_only, mount_point_of
from installer.host.locks import is_held_pidfile
from installer.lifecycle import handover, readiness
from installer.lifecycle.drift import RECONCILE
from installer.model.facts import ADOPTED, ConfigRow, Record, ToolkitRow
from installer.model.files import VERSIONS, Kind, Layout
from installer.model.options import GPU_KIND, Options
from installer.nri.state import describe_plugin as nri_lines
from installer.payload import installed
from installer.payload.config_toml import edited_keys
from installer.payload.files import list_programs_in_place

REPAIR: Final = "install puts it right"
UNDO_PENDING: Final = "undo-pending"
FINISHED_BY: Final = "no unit waits for that (it ends at a reboot): run uninstall, or the uninstall Job"
AGAIN: Final = "run install or uninstall again"
BY_INSTALL: Final = (REPAIR, AGAIN)  # which a run that waits keeps out
NOT_STARTED: Final = "noexec: no program of the toolkit starts; mount {} with -o remount,exec"
CROWDED: Final = "full: no container could be started, each has its state there; make room"
READ_ONLY: Final = "read-only: a repair or an uninstall would fail; mount {} with -o remount,rw"
CORRECT: Final = "correct them"
THEIRS: Final = (
    "not ours: another installer has put its toolkit there; uninstall keeps that and its runtimes, "
    "install makes the node ours again"
)
AS_BEFORE: Final = "as it was before the install"
BEFORE: Final = f"{AS_BEFORE}: the install or its undo was interrupted"
CUT_SHORT: Final = "half done by an interrupted install or undo, and edited since"
LAST_CHECK: Final = "last check"
NOT_AFTER: Final = "would not serve after its next start"
LEFT_TO_OWNER: Final = "restart-pending"  # the code of that
NO_START: Final = "would not start with the configs that it has now"
READS: Final = 3  # of a ledger that an install or a repair writes meanwhile


class Line(Struct, frozen=True):
    """One thing that is installed; ``good`` says whether it is as it should be."""

    what: str
    state: str
    good: bool = False
    later: bool = False  # it goes wrong at an engine's next start, say, and keeps no node from being ready


class Installation(Struct, frozen=True):
    """What is installed on a node, and what the last check said of it."""

    record: Record | None
    last_check: readiness.LastCheck | None
    files: tuple[Line, ...]  # of what lies on the disk
    lines: tuple[Line, ...]  # and those of ``run`` and the NRI plugin

    @property
    def obstacle(self) -> str:
        """What keeps the node from being ready, "" where nothing does."""
        against = (each for each in self.lines if not (each.good or each.later))
        return next((f"{each.what}: {each.state}" for each in against), "")


def read_installation(host: Host, options: Options, *, deep: bool = False) -> Installation:
    """Return what is installed, or, without a ledger, what is left of it; ``deep`` reads programs.

    InstallerError: the ledger cannot be read, or it is not plain which installation is meant.
    """
    options = find_install_dir(host, options, tell=False)
    layout, seen = options.layout, readiness.read_check(host, options.state_file)
    ignores = seen is not None and seen.current and seen.ignores
    for _ in range(READS):
        held = read_record(host, layout)
        record = installed.drop_foreign(host, layout, held) if held else None
        files = tuple(list_files(host, options, record, deep=deep, ignores=ignores))
        if read_record(host, layout) == held:
            break
    # What run says is more than files tell, but for the reason why an engine would not start.
    down = {each.what for each in files if each.state.startswith(NO_START)}
    told = (each for each in list_last_check(seen) if not (each.later and each.what in down))
    lines = (*told, *files) if record else files
    if record and seen and seen.current:  # run keeps an install out, and repairs when it is asked
        files, lines = (tuple(_repaired_by_run(line, seen) for line in each) for each in (files, lines))
    plugin = (Line(*each) for each in nri_lines(host, options.nri, record))
    return Installation(record, seen, files, (*lines, *plugin))


def _repaired_by_run(line: Line, seen: readiness.LastCheck) -> Line:
    how = seen.remedy if seen.code == "config-disturbs-others" else f"{RECONCILE} puts it right"
    return replace(line, state=re.sub("|".join(BY_INSTALL), lambda _: how, line.state))


def list_files(
    host: Host, options: Options, record: Record | None, *, deep: bool, ignores: bool
) -> Iterator[Line]:
    """Yield what is installed; without a ledger what is left of it, and the configs that name our toolkit.

    What others did to configs comes later where ``run`` ``ignores`` drift.
    """
    if record is not None:
        yield from _list_held(host, options.layout, record, deep=deep, ignores=ignores)
        return
    if is_ledger_lost(host, options.layout):
        state = "it was removed: install and uninstall go on by what the configs show to be ours"
        yield Line(str(options.layout.ledger), state)
    row = find_lost_specification(host, options.layout)
    state = f"names {options.layout.toolkit}, but there is no ledger: install or uninstall puts it right"
    for path in (*find_left_behind(host, options), *((row.path,) if row else ())):
        yield Line(str(path), state)


def _list_held(host: Host, layout: Layout, record: Record, *, deep: bool, ignores: bool) -> Iterator[Line]:
    yield from list_last_act(record, undo_goes_on=bool(record.undo_pending) and handover.is_waiting(host))
    if record.toolkit is not None:
        yield from _list_toolkit(host, layout, record, record.toolkit, deep=deep)
    elif installed.is_foreign_toolkit(host, layout):
        yield Line(str(layout.toolkit), THEIRS)
    if unclaimed := host.names(layout.unclaimed):
        state = f"{len(unclaimed)} saved configs whose ledger is lost: uninstall says what to do"
        yield Line(str(layout.unclaimed), state, good=True)
    yield from _list_mount_flaws(host, layout, record)
    for path in (path for path in record.published if is_foreign(host, path)):
        yield Line(str(path), "another program's file: it is not written; move it away", good=True)
    for path in list_crowded(host, record.served):
        yield Line(str(path), CROWDED)
    for path, mode, flaw in installed.list_exposed(host, layout, record):
        ours = installed.is_given_back(layout, record, path)
        remedy = REPAIR if ours else f"run chown root {path}; chmod {mode:o} {path}"
        yield Line(str(path), f"{flaw}: {remedy}", later=not ours)
    yield from _list_configs(host, layout, record, ignores=ignores)
    if record.cdi is not None:
        names = ", ".join(record.cdi.engines) or "no engine"
        yield Line(names, "not changed: it takes devices by CDI where CDI is switched on", good=True)
        if record.cdi.lacking:
            yield Line(GPU_KIND, f"no CDI specification: {record.cdi.lacking}", good=True)
    act = "undo" if record.left else "install"
    for engine in (each for each in record.engines if each.pending):
        state = f"{PENDING} since the last {act}: {engine.pending}"
        yield Line(engine.name, state, good=not engine.restart_due)


def _list_mount_flaws(host: Host, layout: Layout, record: Record) -> Iterator[Line]:
    written = (row.path.parent for row in record.configs if row.written)
    places = dict.fromkeys((layout.install_dir, *written))
    for path in (each for each in places if is_read_only(host, each)):
        yield Line(str(path), READ_ONLY.format(mount_point_of(host, path, "read-only")), later=True)
    if NOEXEC in mount_options(host, layout.toolkit):
        yield Line(str(layout.toolkit), NOT_STARTED.format(mount_point_of(host, layout.toolkit, NOEXEC)))


def _list_toolkit(
    host: Host, layout: Layout, record: Record, toolkit: ToolkitRow, *, deep: bool
) -> Iterator[Line]:
    flaw = _find_link_flaw(host, layout, toolkit)
    yield Line(str(layout.toolkit), f"{flaw}: {REPAIR}" if flaw else f"toolkit {toolkit.version}", not flaw)
    programs = list_programs_in_place(toolkit.files)
    for place in dict.fromkeys(path.parent for path in programs):
        yield Line(str(place), "the toolkit of a package is used in place", good=True)
    for path in programs:
        if not host.exists(path):
            yield Line(str(path), "missing: install its package again, or install from another source")
    damaged = dict(installed.find_damage(host, layout, toolkit, deep=deep))
    runtime = layout.cdi_hook if record.cdi else layout.toolkit / "nvidia-container-runtime"
    if not (flaw or host.exists(runtime)):  # a link that is as installed may lead to nothing
        damaged.setdefault(runtime.name, "missing")
    file = host.read(layout.config)
    if not flaw and toolkit.rendered and file is None and not record.left:
        damaged[str(layout.config)] = "missing"
    for name, damage in damaged.items():
        yield Line(str(layout.toolkit / name), f"{damage}: {REPAIR}")
    if file is not None and toolkit.rendered:  # else it is of a ledger that is lost
        for key in edited_keys(toolkit.rendered, text_of(file, layout.config), name=str(layout.config)):
            yield Line(str(layout.config), f"{key} edited by an administrator", good=True)


def _find_link_flaw(host: Host, layout: Layout, toolkit: ToolkitRow) -> str:
    """Return what is wrong with the link that leads to the toolkit; "" where nothing is."""
    target = host.link_target(layout.toolkit)
    if toolkit.version == ADOPTED:  # of a lost ledger, say: nobody knows any more where it has led
        return ""
    if target == f"{VERSIONS}{toolkit.version}":
        return "" if host.exists(layout.version(toolkit.version)) else f"leads to {target}, which is gone"
    if target is not None:
        return f"not as installed: it leads to {target}"
    there = host.kind(layout.toolkit, last=False) is not Kind.ABSENT
    return "not ours: something else is in its place" if there else "missing"


def _list_configs(host: Host, layout: Layout, record: Record, *, ignores: bool) -> Iterator[Line]:
    """Yield each config, and before those of an engine what they do not come to any more."""
    engines = {engine.name: engine for engine in record.engines} if record.finished else {}
    for name, engine in engines.items():
        spec = ENGINES[name]
        flaw = find_template_flaw(host, spec, spec.config, engine.version)
        if flaw is not None:
            yield Line(name, f"{NOT_AFTER} {spec.finds} ({flaw.reason}): {flaw.remedy}", later=True)
    groups: dict[str, list[ConfigRow]] = {}
    for row in record.configs:
        groups.setdefault(row.engine, []).append(row)
    for name, rows in groups.items():
        found = Comparison()
        with suppress(InstallerError):  # said where the config is
            if name in engines:
                found = compare_configs(host, engines[name], record)
        if record.left:  # of an undo that is to be run again it is not known what it has removed itself
            found = found._replace(lacks=(), has=lambda _: True)
        fatal, lacks, in_force, refused, heals, remedy, waits = found
        if fatal:
            remedy = REPAIR if heals else remedy or CORRECT
            yield Line(name, f"{NO_START} ({fatal}): {remedy}", later=True)
        if waits is not None:
            yield Line(name, f"{PENDING}: {waits}", good=True)
        later = ignores or (bool(lacks) and engines[name].config is None)  # a hook that is run until then
        for lack in lacks:
            yield Line(name, f"drifted: {lack} in its configs: {refused or REPAIR}", later=later)
        unread = name in engines and engines[name].pending
        kept = "" if lacks or record.left or unread else ", our keys in force"
        for row in rows:
            try:
                state, good = _judge_config(host, layout, row, record, in_force, kept=kept)
            except InstallerError as error:
                state, good = str(error), False
            yield Line(str(row.path), state, good, later=ignores and not good and name in engines)


def _judge_config(  # noqa: PLR0913 - what is known of the row, of its engine and of the install
    host: Host, layout: Layout, row: ConfigRow, record: Record, in_force: Callable[[Edit], bool], *, kept: str
) -> tuple[str, bool]:
    """Return how a config is, and whether that is good; ``kept`` is said where our keys are in force."""
    file = host.read(row.path)
    restored = (file.digest if file else "") == (row.original.digest if row.original else "")
    if restored and record.left and record.finished and row.written:
        return AS_BEFORE, True
    if file is None:
        if row.original is None and not record.finished:
            return BEFORE, False
        moved = bool(row.edits) and all(map(in_force, row.edits))
        return f"removed after the install{kept if moved else ''}", moved
    ours = file.digest in row.ours
    if (ours or row.syntax) and row.original and read_saved(host, layout, row.original) is None:
        copy = layout.backups / row.original.digest
        remedy = REPAIR if row.syntax else "write the right file there, then uninstall"
        return f"its saved copy {copy} is missing or damaged: {remedy}", False
    if ours:
        return "as we wrote it", True
    if row.syntax is None:
        return "replaced after the install", False
    edits = relocate_edits(row, file)
    gone = list_missing(text_of(file, row.path), edits, row.syntax, name=str(row.path))
    if not record.finished:  # which of the edits we have removed ourselves is not known
        untouched = row.original and file.digest == row.original.digest
        return BEFORE if untouched else CUT_SHORT, False
    if lost := [edit for edit in gone if not in_force(edit)]:
        keys = ", ".join(dict.fromkeys(".".join(edit.key) for edit in lost))
        return f"drifted: {keys} changed after the install", False
    found = "edited after the install" if row.ours else "not written by the last install"
    return f"{found}{kept if row.edits else ''}", True


def list_last_check(seen: readiness.LastCheck | None) -> Iterator[Line]:
    """Yield what the last check saw."""
    if seen is None:
        return
    if not seen.current:
        state = f"at {seen.time}, by a run that has ended (pid {seen.pid}): no run watches this node"
        yield Line(LAST_CHECK, state, good=True)
        return
    if seen.problem:
        # A restart that is left to the owner of the engine is pending, as it is without ``run``.
        waits = seen.code == LEFT_TO_OWNER
        begin = f"{seen.time}: {PENDING}" if waits else seen.time
        yield Line(LAST_CHECK, f"{begin}: cannot {seen.problem}; {seen.remedy}", good=waits)
    serves = "takes devices by CDI" if seen.by_cdi else "serves our runtimes"
    for engine in seen.engines:
        if engine.serves:
            state = "runs our OCI hook" if engine.hook else serves
            yield Line(engine.name, f"{state}, since {engine.since}", good=True)
        elif engine.serves is not None:
            state = f"did not serve our runtimes at the last check ({engine.differs}), since {engine.since}"
            remedy = "start it" if engine.differs == readiness.NOT_RUNNING else RECONCILE
            yield Line(engine.name, f"{state}: {remedy}")
        if engine.refusal is not None:
            yield Line(engine.name, str(engine.refusal), later=True)
    if seen.generation is not None:
        yield Line(GPU_KIND, str(seen.generation), later=True)
    if seen.doing:
        yield Line("repair", f"under way since {seen.time}: {', '.join(seen.doing)}", good=True)


def list_last_act(record: Record, *, undo_goes_on: bool = False) -> Iterator[Line]:
    """Yield what the last install or undo has left unfinished, or could not do.

    ``undo_goes_on`` tells whether a unit of systemd waits to finish the undo.
    """
    nothing = replace(record, failed=None).empty
    if record.published and nothing:
        what = ", ".join(map(str, record.published))
        yield Line(what, "left by an install that failed; nothing is installed")
    # What is kept of an install that failed holds nothing of the node.
    rolled_back = nothing and (record.failed is not None or bool(record.published))
    if not record.finished and not rolled_back:
        state = f"the last install or undo failed or was cut short; {AGAIN}"
        yield Line("unfinished", state)
    if record.undo_pending:
        reason = f": cannot {record.left}" if record.left else ""
        goes_on = f"{handover.UNIT} finishes it when that is over" if undo_goes_on else FINISHED_BY
        yield Line(UNDO_PENDING, f"since {record.undo_pending}{reason}; {goes_on}")
    elif record.left and record.finished:
        is_old = record.left.startswith("our runtime runs ")  # 0.2.0 left out what an undo could not do
        problem = f"undo everything ({record.left})" if is_old else record.left
        state = f"incomplete, cannot {problem}: {AGAIN}"
        yield Line("last undo", state)
    if record.failed is not None:
        state = f"failed, and is not tried again without a change: cannot {record.failed.problem}"
        yield Line("last plan", state)


def explain_unproven(
    host: Host, pid_file: PurePosixPath, record: Record | None, seen: readiness.LastCheck | None
) -> str:
    """Return why a node is not ready that has nothing else to say against it."""
    waits = is_held_pidfile(host.local_path(pid_file))
    if record is None:
        return f"nothing is installed: {'run is at work, see its log' if waits else 'use install or run'}"
    if not waits:
        return (
            f"no toolkit-installer run waits (normal after install; {pid_file} is not locked): "
            "start run, or see the log of the last one"
        )
    if seen and seen.current and seen.problem:
        return f"cannot {seen.problem}; {seen.remedy}"
    unasked = [each.name for each in seen.engines if each.serves is None] if seen and seen.current else []
    if unasked:
        state = "serves (it was not asked, or did not answer): restart or reload it"
        return f"it is not known what {' or '.join(unasked)} {state}"
    proof = "take devices by CDI" if record.cdi else "serve our runtimes"
    return f"run has not verified yet that the engines {proof}: wait, or see its log"
