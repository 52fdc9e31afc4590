"""What each engine serves at a check of ``run``: by the engine's answer, its configs and its programs."""

from collections.abc import Mapping

from msgspec.structs import replace

from installer.change.plan import Plan
from installer.engines import ENGINES, dry_run
from installer.engines.ask import ask, is_socket_activated
from installer.engines.dependencies import Dependencies, find_dependencies
from installer.engines.low_level import find_low_level_runtime
from installer.engines.observe import engine_of_row, list_asked
from installer.errors import InstallerError
from installer.host import systemd
from installer.host.files import Host
from installer.lifecycle.last_check import NOT_RUNNING, EngineCheck, LastCheck
from installer.lifecycle.watched_places import keep_live, process_of
from installer.model.effective import RuntimeEntry
from installer.model.engine import EngineState
from installer.model.facts import EngineRow, Record
from installer.model.files import Layout
from installer.model.options import Options
from installer.model.steps import Reload


def check_row(host: Host, row: EngineRow, last: EngineCheck) -> EngineCheck:
    """Ask an engine of the ledger whether our runtimes are in force as recorded.

    Args:
        host: the node.
        row: the engine in the ledger.
        last: the result of the last check of the engine.
    """
    engine = engine_of_row(row)
    if not is_socket_activated(host, engine.kind, row.socket, row.unit):
        engine = ask(host, engine)
    serving = engine.serving
    if serving is None:
        return replace(last, serves=False, difference=NOT_RUNNING, process=keep_live(last.process))
    present = tuple(RuntimeEntry(name, path) for name, path in row.runtimes.items())
    serves = Reload(engine.kind, present).satisfied_by(serving) and row.default in {"", serving.default}
    difference = "" if serves else "it serves otherwise than the last install has left it"
    return replace(last, serves=serves, difference=difference, process=process_of(host, engine))


def list_stopped(options: Options, record: Record, plan: Plan) -> list[EngineRow]:
    """Return the configured engines that the options name and that were not found running."""
    missing = {kind.name for kind in list_asked(options)} - plan.engines.keys()
    return [row for row in record.engines if row.name in missing]


def check_engines(  # noqa: PLR0913 - a plan, the node, and what the last check knows
    host: Host, layout: Layout, plan: Plan, previous: LastCheck, *, proven: bool, validates: bool
) -> list[EngineCheck]:
    """Return the state of each engine of a plan.

    Args:
        host: the node.
        layout: the paths of the install.
        plan: the plan, with the observed engines.
        previous: the last check, with the dependencies of engines.
        proven: the plan was carried out; else the reasons of the plan name the engines that do not serve.
        validates: have the engines' own programs validate the present configs.

    Raises:
        InstallerError: an engine starts no container without a missing dependency.
    """
    engines = _ask_reloaded(host, plan) if proven else dict(plan.engines)
    dependencies = _find_engine_dependencies(host, layout, engines, previous)
    refusals: Mapping[str, str] = {}
    if validates:
        refusals = dry_run.find_start_failures(host, engines.values())
    reasons: Mapping[str, str] = {}
    if not proven:
        reasons = _list_reload_reasons(plan)

    checks: list[EngineCheck] = []
    for name, engine in engines.items():
        serves: bool | None = name not in reasons
        if name in plan.unverified_engines:
            serves = None
        check = EngineCheck(
            name,
            serves,
            difference=reasons.get(name, ""),
            process=process_of(host, engine),
            start_failure=refusals.get(name, ""),
            containerd=dependencies[name].containerd,
            monitor=dependencies[name].monitor,
            runs_hook=engine.hook is not None,
            program=engine.next_start.program if engine.next_start else "",
        )
        checks.append(check)
    return checks


def _ask_reloaded(host: Host, plan: Plan) -> dict[str, EngineState]:
    """Return the engines of a plan; ask the reloaded engines again."""
    engines: dict[str, EngineState] = {}
    for name, engine in plan.engines.items():
        engines[name] = ask(host, engine) if name in plan.reloaded else engine
    return engines


def _find_engine_dependencies(
    host: Host, layout: Layout, engines: Mapping[str, EngineState], previous: LastCheck
) -> dict[str, Dependencies]:
    """Return the dependencies of each engine, empty for a silent engine.

    Raises:
        InstallerError: an engine starts no container without a missing dependency.
    """
    known = {check.name: check for check in previous.engines}
    dependencies: dict[str, Dependencies] = {}
    for name, engine in engines.items():
        dependencies[name] = Dependencies()
        if engine.serving is not None:
            last = known.get(name, EngineCheck(name))
            last_dependencies = Dependencies(last.containerd, last.monitor)
            dependencies[name] = find_dependencies(host, engine, layout.toolkit, last_dependencies)
    return dependencies


def _list_reload_reasons(plan: Plan) -> dict[str, str]:
    """Return why the plan reloads engines; leave out an engine with everything in force already."""
    reasons: dict[str, str] = {}
    for step, reason in plan.planned:
        if not isinstance(step, Reload):
            continue
        engine = plan.engines.get(step.engine)
        # An engine that serves is reloaded, too, where its owner has changed its configs.
        serving = engine.serving if engine is not None else None
        if not (serving and step.satisfied_by(serving)):
            reasons[step.engine] = reason
    return reasons


def find_low_level(host: Host, layout: Layout, record: Record, known: str) -> str:
    """Return the low-level runtime behind our runtimes, "" if none was ever found.

    ``known`` is the runtime that the last check found.

    Raises:
        InstallerError: the known runtime is gone.
    """
    found = find_low_level_runtime(host, layout, record)
    if found is None and known:
        raise InstallerError(
            f"start containers with our runtimes ({known}, which they start, is missing or not executable)",
            remedy=f"install it again, or name another one in {layout.config}",
            code="no-low-level-runtime",
        )
    return str(found or "")


def explain_stopped(host: Host, row: EngineRow) -> InstallerError:
    """Explain why a configured engine cannot be asked: the engine does not run, or CRI is off."""
    kind = ENGINES[row.name]
    reason = "it does not run: nothing answers on its socket"
    remedy = f"start {kind.title}; if it runs, its socket was removed: restart both"
    if systemd.look_at_unit(host, row.unit).start.masked:
        remedy = f"run systemctl unmask {row.unit}, then start it"
    # A connection to docker.socket would start a Docker that its owner has stopped.
    if not kind.has_socket_unit and ask(host, engine_of_row(row)).disabled:
        reason = "its CRI is switched off"
        remedy = "take cri out of disabled_plugins in its config, then restart it"
    problem = f"verify that {kind.title} serves our runtimes ({reason})"
    return InstallerError(problem, remedy=remedy, code="engine-not-proven")
