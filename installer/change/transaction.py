"""Carry a plan out: first the ledger, then one step after the other; a failed install is rolled back.

``apply`` carries out an install, ``apply_undo`` an undo; ``_do`` does one step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import PurePosixPath
from time import monotonic
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi.generate import change_device_nodes, held_node, management_specification
from installer.cdi.plan import generated
from installer.change.ledger import Ledger
from installer.change.plan import Plan, plan_rollback
from installer.engines.ask import ask
from installer.engines.containers import await_created, find_running_containers
from installer.engines.dependencies import refuse_unseen
from installer.engines.dry_run import refuse_changed
from installer.engines.low_level import find_substitute_runtime
from installer.engines.reload import reload, write_once_idle
from installer.engines.reload_plan import serves_as_before
from installer.engines.seen_start import complete_row
from installer.errors import (
    UNINSTALL_AGAIN,
    EngineStoppedError,
    InstallerError,
    NotBegunError,
    OtherUnitError,
    PendingError,
    StoppedError,
    UndoIncompleteError,
)
from installer.host import supervision
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.host.trees import install_tree, remove_tree
from installer.host.unit_jobs import STOP_S, Patience
from installer.model import steps
from installer.model.effective import EffectiveConfig
from installer.model.facts import Failure, Owner, Record, explain_running
from installer.model.files import VERSIONS, File, Layout, Meta
from installer.model.steps import Reload, Step, WriteConfig, describe


class Context(Struct, frozen=True):
    """The node and the ledger of a plan in progress."""

    host: Host
    layout: Layout
    ledger: Ledger
    timeout_s: float
    until_s: float = inf  # the end of a pod's grace period, on the monotonic clock
    rolls_back: bool = False  # the plan reverts another plan
    # Yields an error for each remaining reference to the toolkit; called right before the removal.
    find_references: Callable[[], Iterable[InstallerError]] = tuple
    # Called after the last step of a complete undo, while the ledger still has its rows.
    before_removal: Callable[[], object] = tuple

    def patience(self, check: Callable[[], None]) -> Patience:
        """Return the longest wait of a step that begins now."""
        left_s = max(1.0, min(self.timeout_s, self.until_s - monotonic()))
        return Patience(left_s, check, 0.0 if self.until_s < inf else STOP_S)


def never_stop() -> None:
    """Do not stop: check nothing between the steps."""


def apply(context: Context, plan: Plan, check: Callable[[], None], *, undo_follows: bool = False) -> None:
    """Carry out the plan of an install; roll back if a step fails or ``check`` raises.

    Args:
        context: the node and the ledger.
        plan: the plan.
        check: called before each step; raises to stop.
        undo_follows: whether to skip the roll-back after a stop: one undo is quicker than a roll-back and an
            undo.

    Raises:
        UndoIncompleteError: the host differs from the host before, and the ledger is kept.
        InstallerError: the host is as before.
    """
    record = context.ledger.record
    done: list[Step] = []
    try:
        with internal_errors():
            carry_out(context, plan, check, done)
    except InstallerError as error:
        if undo_follows and isinstance(error, StoppedError):
            raise
        if isinstance(error, PendingError):
            # systemd still works on the restart. A second one would not help, and the plan may be right.
            raise UndoIncompleteError(
                f"finish ({error.problem})", remedy=error.remedy, code=error.code
            ) from error
        if not done and context.ledger.record == record:
            context.ledger.drop_backups()
            raise
        if done:
            log.warning("step failed", step=describe(done[-1]).text, error=error)
        if isinstance(error, NotBegunError):
            done.pop()
        _roll_back(context, plan, done, _remember_failure(record, plan, done, error), error)
        raise


def _remember_failure(record: Record, plan: Plan, done: Iterable[Step], error: InstallerError) -> Record:
    """Return the former ledger with a failed reload: the same plan does not reload the engine again."""
    if _is_faultless(error) or not any(isinstance(step, Reload) for step in done):
        return record
    return replace(record, failed=Failure(plan.digest, error.problem))


def apply_undo(context: Context, plan: Plan, check: Callable[[], None]) -> None:
    """Carry out the plan of an undo; restore our edits of an engine that fails without them.

    Raises:
        UndoIncompleteError: an engine has our edits again.
        InstallerError: a step failed; the ledger is kept, and the next undo goes on.
    """
    record = context.ledger.record
    done: list[Step] = []
    try:
        carry_out(context, plan, check, done)
    except InstallerError as error:
        last = done[-1] if done else None
        if not isinstance(last, Reload) or not _needs_our_edits(context, plan, last, error):
            raise
        log.warning("step failed", step=describe(last).text, error=error)
        of_engine = [
            step for step in done if isinstance(step, WriteConfig | Reload) and step.engine == last.engine
        ]
        raise _restore_our_edits(context, plan, of_engine, record, error) from error


def _needs_our_edits(context: Context, plan: Plan, reload: Reload, error: InstallerError) -> bool:
    """Tell whether an engine gets our edits back after a failed restart.

    The engine has to have served before the undo, and the restart has to have failed because of the texts.
    """
    # The texts are not the reason if the engine is up, and a unit beside it is down.
    if isinstance(error, NotBegunError | PendingError | OtherUnitError):
        return False
    engine = plan.engines[reload.engine]
    if engine.serving is None or _is_faultless(error):
        return False
    if engine.kind.reads_config_on_signal:
        # dockerd has refused the reload: the texts are put back without another.
        in_force = _ask_signalled(context, plan, [reload]).get(reload.engine)
        return serves_as_before(engine, in_force)
    return engine.kind.is_restarted and monotonic() <= context.until_s


def _ask_signalled(context: Context, plan: Plan, done: Sequence[Step]) -> dict[str, EffectiveConfig]:
    """Ask the engines that were signalled for their configs in force; leave out silent engines."""
    in_force: dict[str, EffectiveConfig] = {}
    for step in done:
        if isinstance(step, Reload) and step.engine_kind.reads_config_on_signal:
            serving = ask(context.host, plan.engines[step.engine]).serving
            if serving is not None:
                in_force[step.engine] = serving
    return in_force


def _restore_our_edits(
    context: Context, plan: Plan, done: list[WriteConfig | Reload], record: Record, cause: InstallerError
) -> UndoIncompleteError:
    """Give an engine our edits again after a failure without them; return the reason as an error."""
    engine = plan.engines[done[-1].engine]
    reason = f"it does not run as before without them: {cause.problem}"
    if engine.kind.reads_config_on_signal:
        reason = f"it does not take up its config without them: {cause.problem}"
    problem = f"undo our edits of {engine.title} ({reason})"
    back = plan_rollback(
        plan,
        tuple(done),
        replace(record, undo_problem=problem),
        reason="the undo failed",
        in_force=_ask_signalled(context, plan, done),
    )
    try:
        with internal_errors():
            carry_out(replace(context, rolls_back=True), back, never_stop)
    except InstallerError as error:
        problem = f"{problem}, nor does it start with them again ({error.problem})"
        remedy = f"correct that, start {engine.unit}, then {UNINSTALL_AGAIN}"
    else:
        problem = f"{problem}, so it has them again"
        remedy = f"correct that, then {UNINSTALL_AGAIN}"
    return UndoIncompleteError(problem, remedy=remedy, code=cause.code)


def refuse_obstacles(plan: Plan) -> None:
    """Raise the first obstacle of a plan, with the others attached.

    Raises:
        InstallerError: the plan has obstacles.
    """
    if plan.obstacles:
        obstacle = plan.obstacles[0]
        obstacle.others = plan.obstacles[1:]
        raise obstacle


def carry_out(
    context: Context, plan: Plan, check: Callable[[], None], done: list[Step] | None = None
) -> None:
    """Carry out the steps of a plan without a roll-back; the ledger tells the next process how to go on.

    Args:
        context: the node and the ledger.
        plan: the plan.
        check: called before each step; raises to stop.
        done: the list of the begun steps, extended before each step.
    """
    if done is None:
        done = []
    context.ledger.save(plan.backups)
    context.ledger.write(plan.in_progress)
    for planned, reason in plan.planned:
        check()
        done.append(planned)
        step: steps.ConcreteStep
        try:
            with supervision.in_step():
                if isinstance(planned, steps.WriteSpecification):
                    step = _generate(context, planned)  # only now the text is known
                else:
                    step = planned
                done[-1] = step
                happened = _do(context, plan, step, check, done[:-1])
        except InstallerError:
            after = next(iter(plan.steps[len(done) :]), None)
            if isinstance(planned, Reload) and isinstance(after, WriteConfig) and after.passing:
                event = "intermediate text left in config"
                log.warning(event, path=str(after.path), reason="its reload failed")
            raise
        if happened:
            description = describe(step)
            log.info(description.event, **description.fields, reason=reason)
    _write_final(context, plan, done)


def _write_final(context: Context, plan: Plan, done: Sequence[Step]) -> None:
    """Write the final rows of a plan, or remove the ledger if nothing is held any more."""
    if plan.final is None:
        context.before_removal()
        context.ledger.remove()
        return
    # The text of a specification and the inodes of device nodes were not known ahead of the steps.
    nodes = []
    for row in plan.final.nodes:
        node = held_node(context.host, row)
        if node is not None:
            nodes.append(node)
    engines = []
    for engine_row in plan.final.engines:
        engine = plan.engines.get(engine_row.name)
        engines.append(complete_row(context.host, engine_row, engine) if engine is not None else engine_row)
    configs = generated(plan.final.configs, done)
    final = replace(plan.final, engines=tuple(engines), configs=configs, nodes=tuple(nodes))
    if final.empty and not final.published and final.turn is None:
        # Nothing is written, for the disk may be full: the ledger is removed at its release.
        context.ledger.record = final
    else:
        context.ledger.write(final)
        context.ledger.drop_backups()


def _generate(context: Context, step: steps.WriteSpecification) -> WriteConfig:
    """Return the write of a generated specification, after recording the digest of the text."""
    text = management_specification(step.source, context.layout, step.cdi)
    after = File(text.encode(), step.before.meta if step.before else Meta())
    write = WriteConfig(Owner.CDI, step.path, step.before, after)
    record = context.ledger.record
    context.ledger.write(replace(record, configs=generated(record.configs, [write])))
    return write


def _is_faultless(error: InstallerError) -> bool:
    """Tell whether a reload has failed for another reason than the texts."""
    return isinstance(error, StoppedError | EngineStoppedError) or error.code == "systemd-unreachable"


def _roll_back(context: Context, plan: Plan, done: list[Step], record: Record, cause: InstallerError) -> None:
    """Roll back the steps ``done``; ``record`` is the ledger before them.

    Raises:
        UndoIncompleteError: the roll-back failed, or containers run on our runtimes.
    """
    try:
        with internal_errors():
            running = find_running_containers(
                context.host, context.layout, plan.in_progress, plan.engines.values()
            )
            in_force: Mapping[str, EffectiveConfig] = {}
            if not _is_faultless(cause):
                # The failed reload had its whole time: dockerd's answer is not going to change any more.
                in_force = _ask_signalled(context, plan, done)
            back = plan_rollback(plan, tuple(done), record, running, in_force=in_force)
            carry_out(replace(context, rolls_back=True), back, never_stop)
        if not back.in_use:
            return
        problem = f"undo everything ({explain_running(back.in_use)})"
        remedy = "run install or uninstall again when that has ended"
    except InstallerError as error:
        with suppress(Exception):  # the error below counts more
            context.ledger.write(replace(context.ledger.record, failed=record.failed))
        problem = error.problem
        remedy = error.remedy
    raise UndoIncompleteError(
        f"roll back after a failure ({cause}): cannot {problem}", remedy=remedy, code="roll-back-failed"
    ) from cause


def _do(
    context: Context, plan: Plan, step: steps.ConcreteStep, check: Callable[[], None], done: Sequence[Step]
) -> bool:
    """Do a step after the steps ``done``; return whether to log an event."""
    host = context.host
    layout = context.layout
    match step:
        case steps.MakeDirectory(path):
            host.make_directory(path)
        case steps.RemoveDirectory(path):
            return _remove_directory(host, path)
        case steps.FindRuntimes(kind, binaries):
            refuse_unseen(plan.engines[kind.name], binaries)
        case WriteConfig():
            return write_once_idle(host, step, plan.engines, context.patience(check))
        case steps.InstallVersion(version, files):
            host.make_directory(layout.versions)
            install_tree(
                host, layout.version(version), files, find_substitute_runtime(host, plan.in_progress)
            )
        case steps.RemoveVersion(version):
            remove_tree(host, layout.version(version))
        case steps.SwitchToolkit(_, after):
            _switch(host, layout, after)
        case Reload():
            return _reload(context, plan, step, check, done)
        case steps.RemoveToolkit():
            remove_tree(host, layout.toolkit)
        case steps.MakeDeviceNodes() | steps.RemoveDeviceNodes():
            change_device_nodes(host, step)
        case steps.ProveUnused(hooked):
            _prove_unused(context, plan, hooked, check)
        case _:
            assert_never(step)
    return True


def _remove_directory(host: Host, path: PurePosixPath) -> bool:
    """Remove an empty directory; return whether the directory is gone."""
    host.remove_directory(path)
    if host.exists(path):
        log.info("directory kept", path=str(path), reason="it is not empty, or a mount point")
        return False
    return True


def _reload(
    context: Context, plan: Plan, step: Reload, check: Callable[[], None], done: Sequence[Step]
) -> bool:
    """Reload or restart an engine unless everything is in force already; return whether a reload was done.

    The ledger counts every begun reload, with or without success.
    """
    host = context.host
    engine = plan.engines[step.engine]
    patience = replace(context.patience(check), may_rest=context.rolls_back or not step.present)
    refuse_edited = partial(refuse_changed, host, engine, plan.seen, done)
    wanted_units = []
    if context.rolls_back:  # the units that were active before the failed plan
        wanted_units = [unit.name for unit in engine.restarted_units]
    begun = True
    try:
        begun = reload(host, engine, step, patience, refuse_edited, wanted_units=wanted_units)
    except NotBegunError:
        begun = False
        raise
    except OtherUnitError as error:
        context.ledger.write(replace(context.ledger.record, units_down=error.units))
        raise
    finally:
        if begun:
            context.ledger.reloaded.append(step.engine)
    return begun


def _prove_unused(context: Context, plan: Plan, hooked: str, check: Callable[[], None]) -> None:
    """Check that nothing uses the toolkit, right before the removal.

    Raises:
        InstallerError: a container runs on the toolkit, or something names the toolkit.
    """
    if hooked:
        await_created(context.host, plan.engines[hooked], context.layout, check)
    running = find_running_containers(
        context.host, context.layout, context.ledger.record, plan.engines.values()
    )
    if running:
        problem = f"remove the toolkit (a container was just started: {explain_running(running)})"
        raise InstallerError(problem, remedy="run uninstall again", code="in-use")
    references = tuple(context.find_references())
    if references:
        references[0].others = references[1:]
        raise references[0]


def _switch(host: Host, layout: Layout, after: str | None) -> None:
    """Give ``toolkit`` the state ``after`` (see ``SwitchToolkit``), also after an interrupted switch."""
    if after is None:
        _restore_directory(host, layout)
    elif after:
        _point_link(host, layout, after)
    else:
        _remove_link(host, layout)


def _restore_directory(host: Host, layout: Layout) -> None:
    """Put the set-aside directory of another installer back, or remove it for a newer directory."""
    if not _is_directory(host, layout.replaced):
        return
    if host.link_target(layout.toolkit) is not None:
        host.rename(layout.toolkit, layout.replaced, exchange=True)
        host.remove(layout.replaced)
    elif host.exists(layout.toolkit):
        # The other installer has made a new directory, and removes the former at each start.
        remove_tree(host, layout.replaced)
    else:
        host.rename(layout.replaced, layout.toolkit)


def _point_link(host: Host, layout: Layout, target: str) -> None:
    """Point our link to ``target``; another installer's directory or link at the path is set aside."""
    if _is_directory(host, layout.toolkit):
        host.link(layout.replaced, target)
        host.rename(layout.toolkit, layout.replaced, exchange=True)
        return
    link = host.link_target(layout.toolkit)
    if link is not None and not link.startswith(VERSIONS) and not host.exists(layout.replaced):
        host.link(layout.replaced, link)  # an undo finds it there if the ledger is lost
    host.link(layout.toolkit, target)


def _remove_link(host: Host, layout: Layout) -> None:
    """Remove our link; leave a directory of another installer."""
    if host.link_target(layout.toolkit) is not None:
        host.remove(layout.toolkit)


def _is_directory(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a path is taken by something else than a link: by the directory of an installer."""
    return host.link_target(path) is None and host.exists(path)
