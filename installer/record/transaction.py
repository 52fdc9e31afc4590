"""Carry a plan out: the ledger first, then step by step; what fails half way is taken back."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import assert_never

import structlog

from installer.decide.errors import ConflictError, InstallerError, StoppedError, UndoIncompleteError
from installer.decide.facts import names_of
from installer.decide.layout import Layout
from installer.decide.plan import Plan
from installer.decide.rows import Failure, Holdings
from installer.decide.steps import (
    InstallVersion,
    MakeDirectory,
    Preflight,
    ProveUnused,
    Reload,
    RemoveDeviceNode,
    RemoveDirectory,
    RemoveToolkit,
    RemoveVersion,
    Step,
    SwitchToolkit,
    WriteConfig,
    describe,
)
from installer.decide.undo import plan_rollback
from installer.host.files import Host
from installer.host.trees import install_tree, remove_tree
from installer.record.device_nodes import remove_device_node
from installer.record.engines import reload
from installer.record.ledger import Ledger
from installer.record.live import live_containers, low_level_runtime
from installer.record.preflight import preflight

log = structlog.get_logger()


def never_stop() -> None:
    """Do not stop: what has begun is brought to its end."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a plan is carried out."""

    host: Host
    layout: Layout
    ledger: Ledger
    timeout_s: float


def apply(site: Site, plan: Plan, check: Callable[[], None], *, undo_follows: bool = False) -> None:
    """Carry ``plan`` out; when a step fails, or ``check`` raises before one, bring back what was before.

    Where ``undo_follows``, a stop leaves it as it is: one way back is quicker than two.

    Raises:
        InstallerError: the host is as it was before.
        UndoIncompleteError: the host could not be brought back; the ledger is kept.
    """
    held = site.ledger.held
    done: list[Step] = []
    try:
        carry_out(site, plan, check, done)
    except Exception as error:
        if undo_follows and isinstance(error, StoppedError):
            raise
        if not done and site.ledger.held == held:
            site.ledger.drop_backups()
            raise
        if done:
            log.warning("step failed", step=describe(done[-1]), error=str(error))
        if isinstance(error, ConflictError):
            done.pop()  # nothing of it was done
        _take_back(site, plan, done, replace(held, failed=_failure(plan, done, error) or held.failed), error)
        raise


def carry_out(site: Site, plan: Plan, check: Callable[[], None], done: list[Step] | None = None) -> None:
    """Carry ``plan`` out and leave it where it fails; the ledger knows how to go on from there."""
    site.ledger.save(plan.backups)
    site.ledger.write(plan.during)
    for step in plan.steps:
        check()
        if done is not None:
            done.append(step)
        _do(site, plan, step, check)
        log.info(_past(step), **_fields(step))
    if plan.settled is None:
        site.ledger.remove()
    elif plan.settled.empty:
        # It goes with its last rows when it is let go: bringing a host back takes no space of a full disk.
        site.ledger.held = plan.settled
    else:
        site.ledger.write(plan.settled)
        site.ledger.drop_backups()


def _failure(plan: Plan, done: list[Step], error: Exception) -> Failure | None:
    """Return what is remembered, so that an engine is not reloaded again and again for the same outcome."""
    reloaded = any(isinstance(step, Reload) for step in done)
    if not reloaded or isinstance(error, StoppedError) or not isinstance(error, InstallerError):
        return None
    return Failure(plan.digest, error.problem)


def _take_back(site: Site, plan: Plan, done: list[Step], held: Holdings, cause: Exception) -> None:
    live = live_containers(site.host, site.layout, plan.during, plan.engines.values())
    back = plan_rollback(plan, tuple(done), held, live)
    try:
        carry_out(site, back, never_stop)
    except InstallerError as error:
        with suppress(InstallerError):
            site.ledger.write(replace(site.ledger.held, failed=held.failed))
        raise UndoIncompleteError(
            f"bring the host back after a failure ({cause}): {error.problem}", remedy=error.remedy
        ) from cause
    if back.in_use:
        raise UndoIncompleteError(
            f"bring the host back after a failure ({cause}): our runtime runs {names_of(back.in_use)}",
            remedy="run install or uninstall again",
        ) from cause


def _do(site: Site, plan: Plan, step: Step, check: Callable[[], None]) -> None:
    host, layout = site.host, site.layout
    match step:
        case MakeDirectory(path):
            host.make_directory(path)
        case RemoveDirectory(path):
            host.remove_directory(path)
        case Preflight(engine):
            preflight(host, layout, plan.engines[engine], step)
        case WriteConfig():
            _write_config(host, step)
        case InstallVersion(version, files):
            host.make_directory(layout.versions)
            like = low_level_runtime(host, plan.during)
            install_tree(host, layout.version(version), files, like)
        case RemoveVersion(version):
            remove_tree(host, layout.version(version))
        case SwitchToolkit(_, after):
            _switch(host, layout, after)
        case Reload(engine):
            reload(host, plan.engines[engine], step, timeout_s=site.timeout_s, check=check)
        case RemoveToolkit():
            remove_tree(host, layout.toolkit)
        case RemoveDeviceNode(node):
            remove_device_node(host, node)
        case ProveUnused():
            _prove_unused(site, plan)
        case _:
            assert_never(step)


def _prove_unused(site: Site, plan: Plan) -> None:
    live = live_containers(site.host, site.layout, site.ledger.held, plan.engines.values())
    if live:
        raise InstallerError(
            f"remove the toolkit (it has just started {names_of(live)})", remedy="run uninstall again"
        )


def _write_config(host: Host, step: WriteConfig) -> None:
    now = host.read(step.path)
    digest = now and now.digest
    if digest == (step.after and step.after.digest) and (now is None) == (step.after is None):
        return
    if digest != (step.before and step.before.digest):
        raise ConflictError(
            f"edit {step.path} (somebody else wrote it in this very moment)", remedy="run again"
        )
    if step.after is None:
        host.remove(host.resolve(step.path))  # a link that led nowhere before us stays
    else:
        host.replace(step.path, step.after)


def _switch(host: Host, layout: Layout, after: str | None) -> None:
    """Let the toolkit's name be what ``after`` says, wherever an interrupted switch has left it."""
    now = host.link_target(layout.toolkit)
    directory = now is None and host.exists(layout.toolkit)
    aside = host.link_target(layout.replaced) is None and host.exists(layout.replaced)
    if after is None:
        if aside and now is not None:
            host.exchange(layout.toolkit, layout.replaced)
            host.remove(layout.replaced)
        elif aside and not directory:
            host.rename(layout.replaced, layout.toolkit)
    elif directory and after:
        host.link(layout.replaced, after)
        host.exchange(layout.toolkit, layout.replaced)
    elif after:
        host.link(layout.toolkit, after)
    elif now is not None:
        host.remove(layout.toolkit)


def _past(step: Step) -> str:
    match step:
        case MakeDirectory():
            return "directory made"
        case RemoveDirectory():
            return "directory given back"
        case Preflight():
            return "new config looked at"
        case WriteConfig(_, _, _, after):
            return "config written" if after else "config removed"
        case InstallVersion():
            return "toolkit installed"
        case RemoveVersion() | RemoveToolkit():
            return "toolkit removed"
        case SwitchToolkit():
            return "toolkit switched"
        case Reload():
            return "engine reloaded"
        case RemoveDeviceNode():
            return "device node removed"
        case ProveUnused():
            return "no container found on our runtimes"
        case _:
            assert_never(step)


def _fields(step: Step) -> dict[str, str]:
    match step:
        case MakeDirectory(path) | RemoveDirectory(path):
            return {"path": str(path)}
        case RemoveDeviceNode(node):
            return {"path": str(node.path)}
        case WriteConfig(engine, path):
            return {"engine": engine, "path": str(path)}
        case InstallVersion(version) | RemoveVersion(version):
            return {"version": version}
        case SwitchToolkit(_, after):
            return {"target": after or "as before"}
        case Reload(engine) | Preflight(engine):
            return {"engine": engine}
        case RemoveToolkit() | ProveUnused():
            return {}
        case _:
            assert_never(step)
