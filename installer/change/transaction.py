"""Carry a plan out: the ledger first, then step by step; a failure rolls back."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from math import inf
from time import monotonic
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi.device_nodes import held_node, make_device_nodes, remove_device_node
from installer.cdi.generate import management_specification
from installer.cdi.plan import generated
from installer.change.ledger import Ledger
from installer.change.plan import Plan, plan_rollback
from installer.engines import ENGINES
from installer.engines.containers import await_created, find_running_containers, find_substitute_runtime
from installer.engines.dependencies import refuse_unseen
from installer.engines.dry_run import refuse_changed
from installer.engines.restart import reload, write_when_idle
from installer.errors import (
    EngineStoppedError,
    InstallerError,
    NotBegunError,
    PendingError,
    StoppedError,
    UndoIncompleteError,
)
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.host.trees import install_tree, remove_tree
from installer.host.units import STOP_S, Patience
from installer.model.engine_spec import ReloadMethod
from installer.model.facts import names_of
from installer.model.files import File, Meta
from installer.model.options import RestartMode
from installer.model.paths import Layout
from installer.model.record import OWNER, Failure, Record
from installer.model.steps import (
    TRY_AGAIN,
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
    paths_of,
)


class Context(Struct, frozen=True):
    """Where a plan is carried out; ``hurried`` where a pod's grace is running out.

    ``until_s`` is when it has to be over, on the clock that only goes on. ``rolls_back`` tells that it takes
    back what another plan has begun; ``restart_mode`` says whether engines are restarted only when idle.
    """

    host: Host
    layout: Layout
    ledger: Ledger
    timeout_s: float
    until_s: float = inf
    rolls_back: bool = False
    restart_mode: RestartMode = RestartMode.AUTO

    @property
    def hurried(self) -> bool:
        """Whether a pod's grace is running out."""
        return self.until_s < inf

    @property
    def patience_s(self) -> float:
        """For how long a step may wait that begins now."""
        return max(1.0, min(self.timeout_s, self.until_s - monotonic()))


def event_of(step: ConcreteStep) -> tuple[str, dict[str, str]]:
    """Return the event that a step is when it is done, with its facts."""
    match step:
        case MakeDirectory(path):
            return "directory made", {"path": str(path)}
        case RemoveDirectory(path):
            return "directory removed", {"path": str(path)}
        case FindRuntimes(engine):
            return "runtimes found by the engine", {"engine": engine}
        case WriteConfig(engine, path, _, after):
            return "config written" if after else "config removed", {"engine": engine, "path": str(path)}
        case InstallVersion(version) | RemoveVersion(version):
            installed = isinstance(step, InstallVersion)
            return "toolkit installed" if installed else "toolkit removed", {"version": version}
        case RemoveToolkit():
            return "toolkit removed", {}
        case SwitchToolkit(before, after):
            removed = before is None and after is None
            return "toolkit removed" if removed else "toolkit switched", {"target": after or "previous"}
        case Reload(engine):
            by_itself = ENGINES[engine].reload is ReloadMethod.ITSELF
            return "engine restarted by itself" if by_itself else "engine reloaded", {"engine": engine}
        case MakeDeviceNodes(nodes):
            return "device nodes made", {"paths": paths_of(nodes)}
        case RemoveDeviceNodes(nodes):
            return "device nodes removed", {"paths": paths_of(nodes)}
        case ProveUnused():
            return "no container found on our runtimes", {}
        case _:
            assert_never(step)


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
        _roll_back(
            context, plan, done, replace(held, failed=_remember(plan, done, error) or held.failed), error
        )
        raise


def apply_undo(context: Context, plan: Plan, check: Callable[[], None]) -> None:
    """Carry an undo out; an engine that does not start without us gets the configs back that it ran with.

    Raises:
        InstallerError: something of ours is left; the ledger knows how to go on from there.
    """
    held = context.ledger.held
    done: list[Step] = []
    try:
        carry_out(context, plan, check, done)
    except (NotBegunError, PendingError):
        raise
    except InstallerError as error:
        match done[-1:]:
            case [Reload(name)] if ENGINES[name].reload is ReloadMethod.RESTART:
                over = _is_faultless(error) or monotonic() > context.until_s
                if plan.engines[name].serving is not None and not over:
                    log.warning("step failed", step=describe(done[-1]), error=error)
                    of_engine = [s for s in done if isinstance(s, WriteConfig | Reload) and s.engine == name]
                    raise _put_back(context, plan, of_engine, held, error) from error
        raise


def _put_back(
    context: Context, plan: Plan, done: list[WriteConfig | Reload], record: Record, cause: InstallerError
) -> UndoIncompleteError:
    """Have an engine run with our configs again that does not without them; return why it keeps them."""
    engine = plan.engines[done[-1].engine]
    problem = f"undo our edits of {engine.title} (it does not run as before without them: {cause.problem})"
    back = plan_rollback(plan, tuple(done), replace(record, left=problem), why="the undo failed")
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
    for planned, why in zip(plan.steps, plan.why, strict=True):
        check()
        done.append(planned)
        # Its text is known from here on.
        step = _generate(context, planned) if isinstance(planned, WriteSpecification) else planned
        done[-1] = step
        try:
            happened = _do(context, plan, step, check)
        except InstallerError:
            _tell_intermediate(step, plan.steps[len(done) :])
            raise
        if not happened:
            continue
        if isinstance(step, RemoveDirectory) and context.host.exists(step.path):
            log.info("directory kept", path=str(step.path), why="it is not empty, or a mount point")
            continue
        event, facts = event_of(step)
        log.info(event, **facts, why=why)
    final = plan.final and _complete(context.host, plan.final, done)
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


def _generate(context: Context, step: WriteSpecification) -> WriteConfig:
    """Return the specification's step with its text, which the ledger knows from here on."""
    text = management_specification(step.source, context.layout, step.cdi)
    after = File(text.encode(), step.before.meta if step.before else Meta())
    write = WriteConfig(OWNER, step.path, step.before, after)
    held = context.ledger.held
    context.ledger.write(replace(held, configs=generated(held.configs, [write])))
    return write


def _complete(host: Host, final: Record, done: list[Step]) -> Record:
    """Return the rows with what nobody knew ahead of the steps: a generated text, the inodes of nodes."""
    nodes = tuple(now for node in final.nodes if (now := held_node(host, node)) is not None)
    return replace(final, configs=generated(final.configs, done), nodes=nodes)


def _remember(plan: Plan, done: list[Step], error: InstallerError) -> Failure | None:
    """Return what is remembered, so that an engine is not reloaded again and again for the same outcome."""
    reloaded = any(isinstance(step, Reload) for step in done)
    return Failure(plan.digest, error.problem) if reloaded and not _is_faultless(error) else None


def _is_faultless(error: InstallerError) -> bool:
    """Tell whether a reload has failed for another reason than the texts."""
    return isinstance(error, StoppedError | EngineStoppedError) or error.code == "systemd-unreachable"


def _roll_back(context: Context, plan: Plan, done: list[Step], record: Record, cause: InstallerError) -> None:
    try:
        with internal_errors():
            running = find_running_containers(
                context.host, context.layout, plan.in_progress, plan.engines.values()
            )
            back = plan_rollback(plan, tuple(done), record, running)
            carry_out(replace(context, rolls_back=True), back, never_stop)
    except InstallerError as error:
        with suppress(Exception):  # what was not rolled back is told in any case
            context.ledger.write(replace(context.ledger.held, failed=record.failed))
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
            like = find_substitute_runtime(host, plan.in_progress)
            install_tree(host, layout.version(version), files, like)
        case RemoveVersion(version):
            remove_tree(host, layout.version(version))
        case SwitchToolkit(_, after):
            _switch(host, layout, after)
        case Reload(engine):
            facts = plan.engines[engine]
            done = takewhile(lambda each: each is not step, plan.steps)
            gate = partial(refuse_changed, host, facts, plan.seen, done)
            may_rest = context.rolls_back or not step.present
            when_idle = context.restart_mode is RestartMode.WHEN_IDLE and not context.rolls_back
            patience = replace(patience, may_rest=may_rest, when_idle=when_idle)
            return _count_reload(context.ledger, engine, lambda: reload(host, facts, step, patience, gate))
        case RemoveToolkit():
            remove_tree(host, layout.toolkit)
        case MakeDeviceNodes() | RemoveDeviceNodes():
            _change_device_nodes(host, step)
        case ProveUnused(hooked):
            _prove_unused(context, plan, hooked, check)
        case _:
            assert_never(step)
    return True


def _count_reload(ledger: Ledger, name: str, reloads: Callable[[], bool]) -> bool:
    """Remember that an engine was reloaded, also where that did not end well; return whether it was."""
    try:
        reloaded = reloads()
    except NotBegunError:
        raise
    except Exception:
        ledger.reloaded.append(name)
        raise
    if reloaded:
        ledger.reloaded.append(name)
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
    running = find_running_containers(
        context.host, context.layout, context.ledger.held, plan.engines.values()
    )
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
