"""Report what is installed, drifted or pending, from the ledger, the files and the last check of ``run``."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import is_foreign, is_ledger_lost, read_record, read_saved
from installer.change.lost_ledger import (
    REMEDY_OF_NAMED,
    find_install_dir,
    find_left_behind,
    find_lost_specification,
    list_naming_missing_toolkit,
)
from installer.change.pending import PENDING, describe_pending
from installer.config_text import Edit
from installer.config_text.change import list_missing
from installer.engines import ENGINES
from installer.engines.ask import ask, is_socket_activated
from installer.engines.comparison import Comparison, compare_configs
from installer.engines.config_edits import relocate_edits
from installer.engines.config_texts import text_of
from installer.engines.dependencies import list_crowded, mount_options
from installer.engines.observe import engine_of_row
from installer.engines.restarted_units import list_down
from installer.engines.templates import find_template_flaw
from installer.errors import InstallerError
from installer.host.files import NOEXEC, Host, is_read_only, mount_point_of
from installer.host.locks import is_pidfile_locked
from installer.lifecycle import handover
from installer.lifecycle.drift import RECONCILE
from installer.lifecycle.last_check import NOT_RUNNING, EngineCheck, LastCheck, read_check
from installer.lifecycle.mounts import find_other_mounts
from installer.lifecycle.readiness import format_utc
from installer.model.facts import ConfigRow, EngineRow, Pending, Record, SpecialVersion, ToolkitRow
from installer.model.files import VERSIONS, Kind, Layout
from installer.model.options import GPU_KIND, Options
from installer.model.steps import SINCE_OUR_RESTART, START_UNIT
from installer.nri.state import describe_plugin
from installer.payload import access
from installer.payload.config_toml import edited_keys
from installer.payload.files import list_programs_in_place

REPAIR: Final = "install puts it right"
UNDO_PENDING: Final = "undo-pending"
FINISHED_BY: Final = "no unit waits for that (it ends at a reboot): run uninstall, or the uninstall Job"
AGAIN: Final = "run install or uninstall again"
# A run that waits keeps an install out.
BY_INSTALL: Final = (REPAIR, AGAIN)
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
LAST_PLAN: Final = "last plan"
LEFT_TO_OWNER: Final = "restart-pending"  # the code of a restart that is left to the owner of the engine
NO_START: Final = "would not start with the configs that it has now"
ANSWER_S: Final = 5.0
READS: Final = 3  # of the ledger, while an install or a repair writes it


class Line(Struct, frozen=True):
    """The state of one installed thing.

    Attributes:
        subject: A path, an engine, or another name of the thing.
        state: The state, as a sentence.
        good: The state is as installed.
        later: A flaw has its effect later, as at an engine's next start: the node can be ready.
        changed: When the file or link was changed last, in UTC, by whomever; "" if the line is about no file.
        is_note: Nothing of ours is meant: a note on a node where nothing is installed.
    """

    subject: str
    state: str
    good: bool = False
    later: bool = False
    changed: str = ""
    is_note: bool = False


class Installation(Struct, frozen=True):
    """The install of a node, and the node's last check."""

    record: Record | None
    last_check: LastCheck | None
    files: tuple[Line, ...]  # the lines of the files on the disk
    lines: tuple[Line, ...]  # all lines: also those of ``run`` and the NRI plugin

    @property
    def obstacle(self) -> str:
        """The first reason why the node is not ready, or ""."""
        for line in self.lines:
            if not line.good and not line.later:
                return f"{line.subject}: {line.state}"
        return ""

    @property
    def holds_nothing(self) -> bool:
        """Whether nothing is installed, and nothing left. A ledger may still remember a failed plan."""
        if any(line.subject != LAST_PLAN and not line.is_note for line in self.lines):
            return False
        return self.record is None or replace(self.record, failed=None).empty


def read_installation(host: Host, options: Options, *, deep: bool = False) -> Installation:
    """Read the install of a node or, without a ledger, the leftovers of an install.

    Args:
        host: the host.
        options: the options of the command.
        deep: compare the content of installed programs, too.

    Raises:
        InstallerError: the ledger cannot be read, or the options fit several installs.
    """
    options = find_install_dir(host, options, tell=False)
    layout = options.layout
    last_check = read_check(host, options.state_file)
    ignores_drift = last_check is not None and last_check.current and last_check.ignores_drift
    for _ in range(READS):
        ledger_content = read_record(host, layout)
        record = access.drop_foreign(host, layout, ledger_content) if ledger_content else None
        files = tuple(list_files(host, options, record, deep=deep, ignores=ignores_drift))
        if read_record(host, layout) == ledger_content:
            break
    lines = files
    if record:
        # The last check knows more than the files, except why an engine would not start: the files tell that.
        down = {line.subject for line in files if line.state.startswith(NO_START)}
        check_lines = []
        for line in list_last_check(last_check, record):
            if not (line.later and line.subject in down):
                check_lines.append(line)
        lines = (*check_lines, *files)
    if record and last_check and last_check.current:  # run keeps an install out, and repairs on request
        files = tuple(_repaired_by_run(line, last_check) for line in files)
        lines = tuple(_repaired_by_run(line, last_check) for line in lines)
    plugin: list[Line] = []
    for finding in describe_plugin(host, options.nri, record):
        line = Line(finding.subject, finding.state, good=finding.good, later=finding.leaves_ready)
        plugin.append(line)
    if record is None and not files:
        lines = tuple(list_missing_toolkit_notes(host, options))
    return Installation(record, last_check, files, (*lines, *plugin))


def _repaired_by_run(line: Line, last_check: LastCheck) -> Line:
    """Give the line the remedy for the time while ``run`` waits."""
    remedy = f"{RECONCILE} puts it right"
    problem = last_check.problem
    if problem is not None and problem.code == "config-disturbs-others":
        remedy = problem.remedy
    return replace(line, state=re.sub("|".join(BY_INSTALL), lambda _: remedy, line.state))


def list_files(
    host: Host, options: Options, record: Record | None, *, deep: bool, ignores: bool
) -> Iterator[Line]:
    """Yield the installed things; without a ledger the leftovers, and the configs that name our toolkit.

    Where ``run`` ``ignores`` drift, a changed config does not keep the node from being ready.
    """
    if record is not None:
        other_mounts = find_other_mounts(host, options, record)
        if other_mounts is not None:
            yield Line("mounts", str(other_mounts))
        yield from _list_recorded(host, options.layout, record, deep=deep, ignores=ignores)
        return
    yield from list_leftovers(host, options)


def list_leftovers(host: Host, options: Options) -> Iterator[Line]:
    """Yield the leftovers of an install whose ledger is lost, on a node without a ledger."""
    if is_ledger_lost(host, options.layout):
        state = "it was removed: install and uninstall go on by what the configs show to be ours"
        yield Line(str(options.layout.ledger), state)
    row = find_lost_specification(host, options.layout)
    state = f"names {options.layout.toolkit}, but there is no ledger: install or uninstall puts it right"
    paths = list(find_left_behind(host, options))
    if row:
        paths.append(row.path)
    for path in paths:
        yield Line(str(path), state)


def list_missing_toolkit_notes(host: Host, options: Options) -> Iterator[Line]:
    """Yield a note for each config that names our toolkit on a node without it and without a ledger."""
    for path in list_naming_missing_toolkit(host, options):
        state = f"names {options.layout.toolkit}, which is not there: {REMEDY_OF_NAMED}"
        yield Line(str(path), state, good=True, is_note=True)


def _list_recorded(
    host: Host, layout: Layout, record: Record, *, deep: bool, ignores: bool
) -> Iterator[Line]:
    yield from list_last_act(record, undo_goes_on=bool(record.undo_pending) and handover.is_waiting(host))
    yield from _list_units_down(host, record)
    if record.toolkit is not None:
        yield from _list_toolkit(host, layout, record, record.toolkit, deep=deep)
    elif access.is_foreign_toolkit(host, layout):
        yield Line(str(layout.toolkit), THEIRS)
    unclaimed = host.names(layout.unclaimed)
    if unclaimed:
        state = f"{len(unclaimed)} saved configs whose ledger is lost: uninstall says what to do"
        yield Line(str(layout.unclaimed), state, good=True)
    yield from _list_mount_flaws(host, layout, record)
    for path in record.published:
        if is_foreign(host, path):
            yield Line(str(path), "another program's file: it is not written; move it away", good=True)
    for path in list_crowded(host, record.served):
        yield Line(str(path), CROWDED)
    for path, mode, flaw in access.list_exposed(host, layout, record):
        is_ours = access.is_given_back(layout, record, path)
        remedy = REPAIR if is_ours else f"run chown root {path}; chmod {mode:o} {path}"
        yield Line(str(path), f"{flaw}: {remedy}", later=not is_ours)
    yield from _list_configs(host, layout, record, ignores=ignores)
    if record.cdi is not None:
        names = ", ".join(record.cdi.engines) or "no engine"
        yield Line(names, "not changed: it takes devices by CDI where CDI is switched on", good=True)
        if record.cdi.lacking:
            yield Line(GPU_KIND, f"no CDI specification: {record.cdi.lacking}", good=True)
    act = "undo" if record.undo_problem else "install"
    for engine in record.engines:
        if engine.pending is not None and not _is_taken_up(host, engine):
            state = f"{PENDING} since the last {act}: {describe_pending(engine)}"
            yield Line(engine.name, state, good=not engine.restart_due)


def _is_taken_up(host: Host, row: EngineRow) -> bool:
    """Tell whether an engine, with the restart left to the owner, serves the install's settings by now."""
    if row.pending is not Pending.RESTART_BY_OWNER:
        return False
    engine = engine_of_row(row)
    if is_socket_activated(host, engine.kind, engine.socket, engine.unit):
        return False  # a question would start a Docker that its owner has stopped
    serving = ask(host, engine, timeout_s=ANSWER_S).serving
    if serving is None or (row.default and serving.default != row.default):
        return False
    return all(serving.binaries.get(name) == str(path) for name, path in row.runtimes.items())


def _list_units_down(host: Host, record: Record) -> Iterator[Line]:
    for unit, state in list_down(host, record.units_down).items():
        yield Line(unit, f"{state} {SINCE_OUR_RESTART}: {START_UNIT.format(unit=unit)}")


def _list_mount_flaws(host: Host, layout: Layout, record: Record) -> Iterator[Line]:
    written = [row.path.parent for row in record.configs if row.written]
    for path in dict.fromkeys((layout.install_dir, *written)):
        if is_read_only(host, path):
            yield Line(str(path), READ_ONLY.format(mount_point_of(host, path, "read-only")), later=True)
    if NOEXEC in mount_options(host, layout.toolkit):
        yield Line(str(layout.toolkit), NOT_STARTED.format(mount_point_of(host, layout.toolkit, NOEXEC)))


def _list_toolkit(
    host: Host, layout: Layout, record: Record, toolkit: ToolkitRow, *, deep: bool
) -> Iterator[Line]:
    flaw = _find_link_flaw(host, layout, toolkit)
    changed = _last_changed(host, layout.toolkit, last=False)  # an install or an update makes the link anew
    if flaw:
        yield Line(str(layout.toolkit), f"{flaw}: {REPAIR}", changed=changed)
    else:
        yield Line(str(layout.toolkit), f"toolkit {toolkit.version}", good=True, changed=changed)
    programs = list_programs_in_place(toolkit.files)
    for directory in dict.fromkeys(path.parent for path in programs):
        yield Line(str(directory), "the toolkit of a package is used in place", good=True)
    for path in programs:
        if not host.exists(path):
            yield Line(str(path), "missing: install its package again, or install from another source")
    damaged = dict(access.find_damage(host, layout, toolkit, deep=deep))
    runtime = layout.cdi_hook if record.cdi else layout.toolkit / "nvidia-container-runtime"
    if not flaw and not host.exists(runtime):  # the link is as installed, but may lead to nothing
        damaged.setdefault(runtime.name, "missing")
    file = host.read(layout.config)
    if not flaw and toolkit.rendered and file is None and not record.undo_problem:
        damaged[str(layout.config)] = "missing"
    for name, damage in damaged.items():
        yield Line(str(layout.toolkit / name), f"{damage}: {REPAIR}")
    if file is not None and toolkit.rendered:  # without ``rendered`` the ledger was lost
        for key in edited_keys(toolkit.rendered, text_of(file, layout.config), name=str(layout.config)):
            state = f"{key} edited by an administrator"
            yield Line(str(layout.config), state, good=True, changed=_last_changed(host, layout.config))


def _find_link_flaw(host: Host, layout: Layout, toolkit: ToolkitRow) -> str:
    """Return the flaw of the toolkit's link, "" without a flaw."""
    target = host.link_target(layout.toolkit)
    if toolkit.version == SpecialVersion.ADOPTED:
        return ""  # after a lost ledger, for example, the right target is unknown
    if target == f"{VERSIONS}{toolkit.version}":
        if host.exists(layout.version(toolkit.version)):
            return ""
        return f"leads to {target}, which is gone"
    if target is not None:
        return f"not as installed: it leads to {target}"
    if host.kind(layout.toolkit, last=False) is Kind.ABSENT:
        return "missing"
    return "not ours: something else is in its place"


def _list_configs(host: Host, layout: Layout, record: Record, *, ignores: bool) -> Iterator[Line]:
    """Yield each config; the settings that an engine lacks stand in front of the engine's configs."""
    engines = {engine.name: engine for engine in record.engines} if record.finished else {}
    for name, engine in engines.items():
        kind = ENGINES[name]
        flaw = find_template_flaw(host, kind, kind.config, engine.version)
        if flaw is not None:
            yield Line(
                name, f"{NOT_AFTER} {kind.built_in_runtime} ({flaw.reason}): {flaw.remedy}", later=True
            )
    groups: dict[str, list[ConfigRow]] = {}
    for row in record.configs:
        groups.setdefault(row.engine, []).append(row)
    for name, rows in groups.items():
        comparison = Comparison()
        with suppress(InstallerError):  # the line of the config reports the error
            if name in engines:
                comparison = compare_configs(host, engines[name], record)
        if record.undo_problem:  # an incomplete undo may have removed keys itself
            comparison = replace(comparison, lacks=(), in_force=_is_in_force)
        if comparison.fatal:
            remedy = REPAIR if comparison.repairable else comparison.remedy or CORRECT
            yield Line(name, f"{NO_START} ({comparison.fatal}): {remedy}", later=True)
        if comparison.pending is not None:
            yield Line(name, f"{PENDING}: {comparison.pending}", good=True)
        # CRI-O runs our hook until its next start.
        runs_hook = bool(comparison.lacks) and engines[name].config is None
        for lack in comparison.lacks:
            state = f"drifted: {lack} in its configs: {comparison.refused or REPAIR}"
            yield Line(name, state, later=ignores or runs_hook)
        unread = name in engines and engines[name].pending is not None
        kept = "" if comparison.lacks or record.undo_problem or unread else ", our keys in force"
        for row in rows:
            try:
                state, good = _judge_config(host, layout, row, record, comparison.in_force, kept=kept)
            except InstallerError as error:
                state = str(error)
                good = False
            later = ignores and not good and name in engines
            yield Line(str(row.path), state, good, later=later, changed=_last_changed(host, row.path))


def _last_changed(host: Host, path: PurePosixPath, *, last: bool = True) -> str:
    """Return when a file was written last, in UTC; "" for a missing file.

    Of a symbolic link the target counts or, without ``last``, the link itself.
    """
    status = host.status(path, last=last)
    return format_utc(status.st_mtime) if status else ""


def _is_in_force(_edit: Edit) -> bool:
    """Assume that a key is in force."""
    return True


def _judge_config(  # noqa: PLR0913 - what is known of the row, of its engine and of the install
    host: Host, layout: Layout, row: ConfigRow, record: Record, in_force: Callable[[Edit], bool], *, kept: str
) -> tuple[str, bool]:
    """Return the state of a config, and whether it is good.

    Args:
        host: the host.
        layout: the paths of the install.
        row: the config in the ledger.
        record: the content of the ledger.
        in_force: tells whether an engine still has our edit, from whichever file.
        kept: the words for a config with our keys in force.

    Raises:
        InstallerError: the config cannot be read.
    """
    file = host.read(row.path)
    original_digest = row.original.digest if row.original else ""
    present_digest = file.digest if file else ""
    is_restored = present_digest == original_digest
    if is_restored and record.undo_problem and record.finished and row.written:
        return AS_BEFORE, True
    if file is None:
        return _judge_removed_config(row, record, in_force, kept=kept)

    is_as_written = file.digest in row.ours
    if row.original and (is_as_written or row.syntax) and read_saved(host, layout, row.original) is None:
        copy = layout.backups / row.original.digest
        remedy = REPAIR if row.syntax else "write the right file there, then uninstall"
        return f"its saved copy {copy} is missing or damaged: {remedy}", False
    if is_as_written:
        return "as we wrote it", True
    if row.syntax is None:
        return "replaced after the install", False
    missing = list_missing(text_of(file, row.path), relocate_edits(row, file), row.syntax, name=str(row.path))
    if not record.finished:  # an interrupted undo may have removed some of the edits itself
        return BEFORE if row.original and is_restored else CUT_SHORT, False
    return _judge_edited_config(row, missing, in_force, kept=kept)


def _judge_removed_config(
    row: ConfigRow, record: Record, in_force: Callable[[Edit], bool], *, kept: str
) -> tuple[str, bool]:
    """Return the state of a config that is not there, and whether it is good."""
    if row.original is None and not record.finished:
        return BEFORE, False
    if row.edits and all(map(in_force, row.edits)):  # another file has our keys now
        return f"removed after the install{kept}", True
    return "removed after the install", False


def _judge_edited_config(
    row: ConfigRow, missing: Iterable[Edit], in_force: Callable[[Edit], bool], *, kept: str
) -> tuple[str, bool]:
    """Return the state of an edited config of a finished install, and whether it is good.

    ``missing`` are our edits that the config has not.
    """
    lost_keys = [".".join(edit.key) for edit in missing if not in_force(edit)]
    if lost_keys:
        keys = ", ".join(dict.fromkeys(lost_keys))
        return f"drifted: {keys} changed after the install", False
    state = "edited after the install" if row.ours else "not written by the last install"
    if row.edits:
        state += kept
    return state, True


def list_last_check(check: LastCheck | None, record: Record) -> Iterator[Line]:
    """Yield the results of the last check."""
    if check is None:
        return
    if not check.current:
        state = f"at {check.time}, by a run that has ended (pid {check.pid}): no run watches this node"
        yield Line(LAST_CHECK, state, good=True)
        return

    if check.problem is not None:
        is_pending = is_left_to_owner(check, record)
        begin = check.time
        if is_pending:
            begin += f": {PENDING}"
        yield Line(LAST_CHECK, f"{begin}: {check.problem.error}", good=is_pending)

    for engine in check.engines:
        yield from _describe_engine(engine, by_cdi=check.by_cdi)
    if check.specification_problem is not None:
        yield Line(GPU_KIND, str(check.specification_problem.error), later=True)
    if check.repair.under_way:
        steps = ", ".join(check.repair.under_way)
        yield Line("repair", f"under way since {check.time}: {steps}", good=True)


def _describe_engine(engine: EngineCheck, *, by_cdi: bool) -> Iterator[Line]:
    """Yield the state of an engine at the last check, and the flaw of the next start."""
    if engine.serves:
        state = "serves our runtimes"
        if engine.runs_hook:
            state = "runs our OCI hook"
        elif by_cdi:
            state = "takes devices by CDI"
        yield Line(engine.name, f"{state}, since {engine.since}", good=True)
    elif engine.serves is not None:
        state = f"did not serve our runtimes at the last check ({engine.difference}), since {engine.since}"
        remedy = "start it" if engine.difference == NOT_RUNNING else RECONCILE
        yield Line(engine.name, f"{state}: {remedy}")
    if engine.refusal is not None:
        yield Line(engine.name, str(engine.refusal), later=True)


def is_left_to_owner(check: LastCheck, record: Record) -> bool:
    """Tell whether the check has found only a restart left to the owner."""
    if check.keeps_install:
        return True
    is_postponed = any(row.restart_due for row in record.engines)
    return check.problem is not None and check.problem.code == LEFT_TO_OWNER and not is_postponed


def list_last_act(record: Record, *, undo_goes_on: bool = False) -> Iterator[Line]:
    """Yield the unfinished work of the last install or undo.

    Args:
        record: the content of the ledger.
        undo_goes_on: a unit of systemd waits to finish the undo.
    """
    nothing = replace(record, failed=None).empty
    if record.published and nothing:
        paths = ", ".join(map(str, record.published))
        yield Line(paths, "left by an install that failed; nothing is installed")
    # The ledger keeps the failed plan of an install that was rolled back; nothing is installed.
    rolled_back = nothing and (record.failed is not None or bool(record.published))
    if not record.finished and not rolled_back:
        state = f"the last install or undo failed or was cut short; {AGAIN}"
        yield Line("unfinished", state)
    if record.undo_pending:
        pending = record.undo_pending
        reason = f"cannot {record.undo_problem}" if record.undo_problem else pending.reason
        goes_on = FINISHED_BY
        if undo_goes_on and record.undo_problem:
            goes_on = f"{handover.UNIT} finishes it when that is over"
        elif undo_goes_on:
            goes_on = f"{handover.UNIT} undoes {pending.waits_s:.0f} s later, unless run starts first"
        yield Line(UNDO_PENDING, f"since {pending.since}: {reason}; {goes_on}")
    elif record.undo_problem and record.finished:
        state = f"incomplete, cannot {record.undo_problem}: {AGAIN}"
        yield Line("last undo", state)
    turn = record.turn
    if turn is not None:
        moment = turn.asked.partition(" ")[0]
        engines = ", ".join(turn.engines)
        state = f"asked for at {moment} as {turn.node} of {turn.release}, to restart {engines}"
        yield Line("turn", state, good=True)
    if record.failed is not None:
        state = f"failed, and is not tried again without a change: cannot {record.failed.problem}"
        yield Line(LAST_PLAN, state)


def explain_unproven(
    host: Host, pid_file: PurePosixPath, record: Record | None, last_check: LastCheck | None
) -> str:
    """Return why a node without any obstacle is not ready."""
    waits = is_pidfile_locked(host.local_path(pid_file))
    if record is None:
        remedy = "run is working: see its log" if waits else "use install or run"
        return f"nothing is installed: {remedy}"
    if not waits:
        return (
            f"no toolkit-installer run waits (this is normal after install; {pid_file} is not locked): "
            "start run, or see the log of the last run"
        )
    if last_check and last_check.current:
        if last_check.problem is not None:
            return str(last_check.problem.error)
        unasked = [engine.name for engine in last_check.engines if engine.serves is None]
        if unasked:
            state = "serves (it was not asked, or did not answer): restart or reload it"
            return f"it is not known what {' or '.join(unasked)} {state}"
    proof = "take devices by CDI" if record.cdi else "serve our runtimes"
    return f"run has not verified yet that the engines {proof}: wait, or see its log"
