"""Carry a plan out: the ledger first, then step by step; a failure rolls back."""

from collections.abc import Callable, Iterable, Sequence
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
from installer.engines import ENGINES
from installer.engines.containers import await_created, find_running_containers, find_substitute_runtime
from installer.engines.dependencies import refuse_unseen
from installer.engines.dry_run import refuse_changed
from installer.engines.restart import reload, write_once_idle
from installer.errors import (
    EngineStoppedError,
    InstallerError,
    NotBegunError,
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
from installer.model.engine_spec import ReloadMethod
from installer.model.facts import OWNER, Failure, Record, names_of
from installer.model.files import File, Layout, Meta
from installer.model.steps import TRY_AGAIN, Reload, Step, WriteConfig, describe


class Context(Struct, frozen=True):
    """Where a plan is carried out."""

    host: Host
    layout: Layout
    ledger: Ledger
    timeout_s: float
    until_s: float = inf  # when a pod's grace runs out, on the clock that only goes on
    rolls_back: bool = False  # it takes back what another plan has begun
    # Yields what still starts a program of the toolkit, asked right before that is removed.
    find_references: Callable[[], Iterable[InstallerError]] = tuple

    def patience(self, check: Callable[[], None]) -> Patience:
        """Return for how long a step may wait that begins now."""
        left_s = max(1.0, min(self.timeout_s, self.until_s - monotonic()))
        return Patience(left_s, check, 0.0 if self.until_s < inf else STOP_S)


def never_stop() -> None:
    """Do not stop: what has begun is brought to its end."""


def apply(context: Context, plan: Plan, check: Callable[[], None], *, undo_follows: bool = False) -> None:
    """Carry ``plan`` out; when a step fails, or ``check`` raises before one, roll back.

    Where ``undo_follows``, a stop leaves it as it is: one undo is quicker than a roll-back and an undo.
    InstallerError: the host is as it was before. UndoIncompleteError: it is not, and the ledger is kept.
    """
    held = context.ledger.held
    done: list[Step] = []
    try:
        with internal_errors():
            carry_out(context, plan, check, done)
    except InstallerError as error:
        if undo_follows and isinstance(error, StoppedError):
            raise
        if isinstance(error, PendingError):
            # Another restart on top of this one helps nothing, and the plan may be all right.
            raise UndoIncompleteError(
                f"finish ({error.problem})", remedy=error.remedy, code=error.code
            ) from error
        if not done and context.ledger.held == held:
            context.ledger.drop_backups()
            raise
        if done:
            log.warning("step failed", step=describe(done[-1]).text, error=error)
        if isinstance(error, NotBegunError):
            done.pop()
        failed = held.failed
        # So that an engine is not reloaded again and again for the same outcome.
        if any(isinstance(step, Reload) for step in done) and not _is_faultless(error):
            failed = Failure(plan.digest, error.problem)
        _roll_back(context, plan, done, replace(held, failed=failed), error)
        raise


def apply_undo(context: Context, plan: Plan, check: Callable[[], None]) -> None:
    """Carry an undo out; an engine that fails without us gets its configs back. Raise where ours are left."""
    held = context.ledger.held
    done: list[Step] = []
    try:
        carry_out(context, plan, check, done)
    except InstallerError as error:
        last = done[-1] if done else None
        if (
            isinstance(error, NotBegunError | PendingError)
            or not isinstance(last, Reload)
            or ENGINES[last.engine].reload is not ReloadMethod.RESTART
            or plan.engines[last.engine].serving is None
            or _is_faultless(error)
            or monotonic() > context.until_s
        ):
            raise
        log.warning("step failed", step=describe(last).text, error=error)
        of_engine = [s for s in done if isinstance(s, WriteConfig | Reload) and s.engine == last.engine]
        raise _put_back(context, plan, of_engine, held, error) from error


def _put_back(
    context: Context, plan: Plan, done: list[WriteConfig | Reload], record: Record, cause: InstallerError
) -> UndoIncompleteError:
    """Have an engine run with our configs again that does not without them; return why it keeps them."""
    engine = plan.engines[done[-1].engine]
    problem = f"undo our edits of {engine.title} (it does not run as before without them: {cause.problem})"
    back = plan_rollback(plan, tuple(done), replace(record, left=problem), reason="the undo failed")
    try:
        with internal_errors():
            carry_out(replace(context, rolls_back=True), back, never_stop)
    except InstallerError as error:
        problem = f"{problem}, nor does it start with them again ({error.problem})"
        remedy = f"correct that, start {engine.unit}, then {TRY_AGAIN}"
    else:
        problem, remedy = f"{problem}, so it has them again", f"correct that, then {TRY_AGAIN}"
    return UndoIncompleteError(problem, remedy=remedy, code=cause.code)


def refuse_obstacles(plan: Plan) -> None:
    """Raise the first obstacle of a plan that could not end well; it has the others with it."""
    for obstacle in plan.obstacles:
        obstacle.others = plan.obstacles[1:]
        raise obstacle


def carry_out(
    context: Context, plan: Plan, check: Callable[[], None], done: list[Step] | None = None
) -> None:
    """Carry ``plan`` out and leave it where it fails; the ledger knows how to go on from there."""
    done = [] if done is None else done
    context.ledger.save(plan.backups)
    context.ledger.write(plan.in_progress)
    for planned, reason in plan.planned:
        check()
        done.append(planned)
        step: steps.ConcreteStep
        try:
            with supervision.in_step():
                if isinstance(planned, steps.WriteSpecification):
                    step = _generate(context, planned)  # its text is known from here on
                else:
                    step = planned
                done[-1] = step
                happened = _do(context, plan, step, check, done[:-1])
        except InstallerError:
            after = next(iter(plan.steps[len(done) :]), None)
            if isinstance(planned, Reload) and isinstance(after, WriteConfig) and after.passing:
                event = "config is an intermediate text"
                log.warning(event, path=str(after.path), reason="its reload failed")
            raise
        if happened:
            deed = describe(step)
            log.info(deed.event, **deed.fields, reason=reason)
    if plan.final is None:
        context.ledger.remove()
        return
    # What was not known ahead of the steps: a generated text, the inodes of nodes.
    nodes = tuple(now for node in plan.final.nodes if (now := held_node(context.host, node)) is not None)
    final = replace(plan.final, configs=generated(plan.final.configs, done), nodes=nodes)
    if final.empty and not final.published:
        # It is removed with its last rows when it is released: a roll-back takes no space of a full disk.
        context.ledger.held = final
    else:
        context.ledger.write(final)
        context.ledger.drop_backups()


def _generate(context: Context, step: steps.WriteSpecification) -> WriteConfig:
    """Return the specification's step with its text, which the ledger knows from here on."""
    text = management_specification(step.source, context.layout, step.cdi)
    after = File(text.encode(), step.before.meta if step.before else Meta())
    write = WriteConfig(OWNER, step.path, step.before, after)
    held = context.ledger.held
    context.ledger.write(replace(held, configs=generated(held.configs, [write])))
    return write


def _is_faultless(error: InstallerError) -> bool:
    """Tell whether a reload has failed for another reason than the texts."""
    return isinstance(error, StoppedError | EngineStoppedError) or error.code == "systemd-unreachable"


def _roll_back(context: Context, plan: Plan, done: list[Step], record: Record, cause: InstallerError) -> None:
    host, engines = context.host, plan.engines.values()
    try:
        with internal_errors():
            running = find_running_containers(host, context.layout, plan.in_progress, engines)
            back = plan_rollback(plan, tuple(done), record, running)
            carry_out(replace(context, rolls_back=True), back, never_stop)
        if not back.in_use:
            return
        problem = f"undo everything (our runtime runs {names_of(back.in_use)})"
        remedy = "run install or uninstall again when that has ended"
    except InstallerError as error:
        with suppress(Exception):  # the error below counts more
            context.ledger.write(replace(context.ledger.held, failed=record.failed))
        problem, remedy = error.problem, error.remedy
    raise UndoIncompleteError(
        f"roll back after a failure ({cause}): cannot {problem}", remedy=remedy, code="roll-back-failed"
    ) from cause


def _do(
    context: Context, plan: Plan, step: steps.ConcreteStep, check: Callable[[], None], done: Sequence[Step]
) -> bool:
    """Do a step, after those that are ``done``; return whether that is an event."""
    host, layout = context.host, context.layout
    match step:
        case steps.MakeDirectory(path):
            host.make_directory(path)
        case steps.RemoveDirectory(path):
            return _remove_directory(host, path)
        case steps.FindRuntimes(spec, binaries):
            refuse_unseen(plan.engines[spec.name], binaries)
        case WriteConfig():
            write_once_idle(host, step, plan.engines, context.patience(check))
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
    host.remove_directory(path)
    if kept := host.exists(path):
        log.info("directory kept", path=str(path), reason="it is not empty, or a mount point")
    return not kept


def _reload(
    context: Context, plan: Plan, step: Reload, check: Callable[[], None], done: Sequence[Step]
) -> bool:
    """Return whether the engine was reloaded; the ledger counts that also where it did not end well."""
    host, engine = context.host, plan.engines[step.engine]
    patience = replace(context.patience(check), may_rest=context.rolls_back or not step.present)
    begun = True
    try:
        begun = reload(host, engine, step, patience, partial(refuse_changed, host, engine, plan.seen, done))
    except NotBegunError:
        begun = False
        raise
    finally:
        if begun:
            context.ledger.reloaded.append(step.engine)
    return begun


def _prove_unused(context: Context, plan: Plan, hooked: str, check: Callable[[], None]) -> None:
    if hooked:
        await_created(context.host, plan.engines[hooked], context.layout, check)
    running = find_running_containers(
        context.host, context.layout, context.ledger.held, plan.engines.values()
    )
    if running:
        problem = f"remove the toolkit (its runtime has just started {names_of(running)})"
        raise InstallerError(problem, remedy="run uninstall again", code="in-use")
    references = tuple(context.find_references())
    if references:
        references[0].others = references[1:]
        raise references[0]


def _switch(host: Host, layout: Layout, after: str | None) -> None:
    """Let the toolkit's name be what ``after`` says, wherever an interrupted switch has left it."""
    now = host.link_target(layout.toolkit)
    directory = now is None and host.exists(layout.toolkit)
    aside = host.link_target(layout.replaced) is None and host.exists(layout.replaced)
    if after is None:
        if aside and now is not None:
            host.rename(layout.toolkit, layout.replaced, exchange=True)
            host.remove(layout.replaced)
        elif aside and directory:  # by an installer that removes its former one at each start
            remove_tree(host, layout.replaced)
        elif aside:
            host.rename(layout.replaced, layout.toolkit)
    elif directory and after:
        host.link(layout.replaced, after)
        host.rename(layout.toolkit, layout.replaced, exchange=True)
    elif after:
        host.link(layout.toolkit, after)
    elif now is not None:
        host.remove(layout.toolkit)
