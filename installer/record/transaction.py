"""Carry a plan out: the ledger first, then step by step; a failure rolls back."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import assert_never

from installer.decide.data import replace
from installer.decide.errors import (
    EngineStoppedError,
    InstallerError,
    NotBegunError,
    PendingError,
    StoppedError,
    UndoIncompleteError,
)
from installer.decide.facts import names_of
from installer.decide.inode import File, Meta
from installer.decide.layout import Layout
from installer.decide.options import RestartMode
from installer.decide.parts.cdi import OWNER, generated
from installer.decide.plan import Plan
from installer.decide.rows import Failure, Record
from installer.decide.steps import (
    ConcreteStep,
    FindRuntimes,
    InstallVersion,
    MakeDeviceNodes,
    MakeDirectory,
    ProveUnused,
    Reload,
    RemoveDeviceNodes,
    RemoveDirectory,
    RemoveToolkit,
    RemoveVersion,
    Step,
    SwitchToolkit,
    WriteConfig,
    WriteSpecification,
    describe,
)
from installer.decide.undo import plan_rollback
from installer.host.events import log
from installer.host.files import Host
from installer.host.trees import install_tree, remove_tree
from installer.record.await_idle import write_when_idle
from installer.record.cdi import make_device_nodes, specification
from installer.record.context import Context
from installer.record.device_nodes import held_node, remove_device_node
from installer.record.engines import reload
from installer.record.hooks import await_created
from installer.record.internal import internal_errors
from installer.record.ledger import Ledger
from installer.record.recheck import refuse_changed
from installer.record.running import low_level_runtime, running_containers
from installer.record.told import fields, past
from installer.record.units import STOP_S, Patience
from installer.record.visible import refuse_unseen


def never_stop() -> None:
    """Do not stop: what has begun is brought to its end."""


def apply(context: Context, plan: Plan, check: Callable[[], None], *, undo_follows: bool = False) -> None:
    """Carry ``plan`` out; when a step fails, or ``check`` raises before one, roll back.

    Where ``undo_follows``, a stop leaves it as it is: one undo is quicker than a roll-back and an undo.

    Raises:
        InstallerError: the host is as it was before.
        UndoIncompleteError: the roll-back failed; the ledger is kept.
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
            # Another restart on top of this one helps nobody, and the plan may be all right.
            raise UndoIncompleteError(
                f"finish ({error.problem})", remedy=error.remedy, code=error.code
            ) from error
        if not done and context.ledger.held == held:
            context.ledger.drop_backups()
            raise
        if done:
            log.warning("step failed", step=describe(done[-1]), error=error)
        if isinstance(error, NotBegunError):
            done.pop()
        _take_back(
            context, plan, done, replace(held, failed=_failure(plan, done, error) or held.failed), error
        )
        raise


def refuse_obstacles(plan: Plan) -> None:
    """Raise where a plan could not end well, for the first reason; there is an event for each other one."""
    for other in plan.obstacles[1:]:
        log.error("obstacle", error=other)
    for obstacle in plan.obstacles:
        raise obstacle


def carry_out(
    context: Context, plan: Plan, check: Callable[[], None], done: list[Step] | None = None
) -> None:
    """Carry ``plan`` out and leave it where it fails; the ledger knows how to go on from there."""
    done = [] if done is None else done
    context.ledger.save(plan.backups)
    context.ledger.write(plan.in_progress)
    for step, why in zip(plan.steps, plan.why, strict=True):
        check()
        done.append(step)
        if isinstance(step, WriteSpecification):
            done[-1] = step = _generated(context, step)  # noqa: PLW2901 - its text is known from here on
        try:
            happened = _do(context, plan, step, check)
        except InstallerError:
            _tell_intermediate(step, plan.steps[len(done) :])
            raise
        if not happened:
            continue
        if isinstance(step, RemoveDirectory) and context.host.exists(step.path):
            log.info("directory kept", **fields(step), why="it is not empty, or a mount point")
            continue
        log.info(past(step), **fields(step), why=why)
    final = plan.final and _as_done(context.host, plan.final, done)
    if final is None:
        context.ledger.remove()
    elif final.empty and not final.published:
        # It is removed with its last rows when it is released: a roll-back takes no space of a full disk.
        context.ledger.held = final
    else:
        context.ledger.write(final)
        context.ledger.drop_backups()


def _tell_intermediate(failed: Step, rest: Sequence[Step]) -> None:
    """Say which file holds a text that was to stand there for the time of the ``failed`` reload only."""
    following = next(iter(rest), None)
    if isinstance(failed, Reload) and isinstance(following, WriteConfig) and following.passing:
        log.warning("config is an intermediate text", path=str(following.path), reason="its reload failed")


def _generated(context: Context, step: WriteSpecification) -> WriteConfig:
    """Return the specification's step with its text, which the ledger knows from here on."""
    text = specification(step.source, context.layout, step.cdi)
    after = File(text.encode(), step.before.meta if step.before else Meta())
    write = WriteConfig(OWNER, step.path, step.before, after)
    held = context.ledger.held
    context.ledger.write(replace(held, configs=generated(held.configs, [write])))
    return write


def _as_done(host: Host, final: Record, done: list[Step]) -> Record:
    """Return the rows with what nobody knew ahead of the steps: a generated text, the inodes of nodes."""
    nodes = tuple(now for node in final.nodes if (now := held_node(host, node)) is not None)
    return replace(final, configs=generated(final.configs, done), nodes=nodes)


def _failure(plan: Plan, done: list[Step], error: InstallerError) -> Failure | None:
    """Return what is remembered, so that an engine is not reloaded again and again for the same outcome."""
    reloaded = any(isinstance(step, Reload) for step in done)
    faultless = isinstance(error, StoppedError | EngineStoppedError) or error.code == "systemd-unreachable"
    return Failure(plan.digest, error.problem) if reloaded and not faultless else None


def _take_back(context: Context, plan: Plan, done: list[Step], held: Record, cause: InstallerError) -> None:
    try:
        with internal_errors():
            running = running_containers(
                context.host, context.layout, plan.in_progress, plan.engines.values()
            )
            back = plan_rollback(plan, tuple(done), held, running)
            carry_out(replace(context, rolls_back=True), back, never_stop)
    except InstallerError as error:
        with suppress(Exception):  # what was not rolled back is told in any case
            context.ledger.write(replace(context.ledger.held, failed=held.failed))
        raise UndoIncompleteError(
            f"bring the host back after a failure ({cause}): {error.problem}",
            remedy=error.remedy,
            code="roll-back-failed",
        ) from cause
    if back.in_use:
        raise UndoIncompleteError(
            f"bring the host back after a failure ({cause}): our runtime runs {names_of(back.in_use)}",
            remedy="run install or uninstall again",
            code="roll-back-failed",
        ) from cause


def _do(context: Context, plan: Plan, step: ConcreteStep, check: Callable[[], None]) -> bool:
    """Do a step; return whether that is to be told."""
    host, layout = context.host, context.layout
    patience = Patience(context.patience_s, check, 0.0 if context.hurried else STOP_S)
    match step:
        case MakeDirectory(path):
            host.make_directory(path)
        case RemoveDirectory(path):
            host.remove_directory(path)
        case FindRuntimes(engine, binaries):
            refuse_unseen(plan.engines[engine], binaries)
        case WriteConfig():
            write_when_idle(host, step, plan.engines, patience)
        case InstallVersion(version, files):
            host.make_directory(layout.versions)
            like = low_level_runtime(host, plan.in_progress)
            install_tree(host, layout.version(version), files, like)
        case RemoveVersion(version):
            remove_tree(host, layout.version(version))
        case SwitchToolkit(_, after):
            _switch(host, layout, after)
        case Reload(engine):
            facts = plan.engines[engine]
            done = takewhile(lambda each: each is not step, plan.steps)
            gate = partial(refuse_changed, host, facts, plan.seen, done)
            patience = replace(patience, may_rest=context.rolls_back or not step.present)
            when_idle = context.restart_mode is RestartMode.WHEN_IDLE and not context.rolls_back
            patience = replace(patience, when_idle=when_idle)
            return _counted(context.ledger, engine, lambda: reload(host, facts, step, patience, gate))
        case RemoveToolkit():
            remove_tree(host, layout.toolkit)
        case MakeDeviceNodes() | RemoveDeviceNodes():
            _change_device_nodes(host, step)
        case ProveUnused(hooked):
            _prove_unused(context, plan, hooked, check)
        case _:
            assert_never(step)
    return True


def _counted(ledger: Ledger, engine: str, reloads: Callable[[], bool]) -> bool:
    """Remember that an engine was reloaded, also where that did not end well; return whether it was."""
    try:
        reloaded = reloads()
    except NotBegunError:
        raise
    except Exception:
        ledger.reloaded.append(engine)
        raise
    if reloaded:
        ledger.reloaded.append(engine)
    return reloaded


def _change_device_nodes(host: Host, step: MakeDeviceNodes | RemoveDeviceNodes) -> None:
    if isinstance(step, MakeDeviceNodes):
        make_device_nodes(step)
        return
    for node in step.nodes:
        remove_device_node(host, node)


def _prove_unused(context: Context, plan: Plan, hooked: str, check: Callable[[], None]) -> None:
    if hooked:
        await_created(context.host, plan.engines[hooked], context.layout, check)
    running = running_containers(context.host, context.layout, context.ledger.held, plan.engines.values())
    if running:
        raise InstallerError(
            f"remove the toolkit (it has just started {names_of(running)})",
            remedy="run uninstall again",
            code="in-use",
        )


def _switch(host: Host, layout: Layout, after: str | None) -> None:
    """Let the toolkit's name be what ``after`` says, wherever an interrupted switch has left it."""
    now = host.link_target(layout.toolkit)
    directory = now is None and host.exists(layout.toolkit)
    aside = host.link_target(layout.replaced) is None and host.exists(layout.replaced)
    if after is None:
        if aside and now is not None:
            host.exchange(layout.toolkit, layout.replaced)
            host.remove(layout.replaced)
        elif aside and directory:  # by an installer that removes its former one at each start
            remove_tree(host, layout.replaced)
        elif aside:
            host.rename(layout.replaced, layout.toolkit)
    elif directory and after:
        host.link(layout.replaced, after)
        host.exchange(layout.toolkit, layout.replaced)
    elif after:
        host.link(layout.toolkit, after)
    elif now is not None:
        host.remove(layout.toolkit)
