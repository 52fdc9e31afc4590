"""What each engine is seen to serve at a look of ``run``, and what is told of it."""

from collections.abc import Iterable, Iterator, Mapping

from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.layout import Layout
from installer.decide.options import Options, RestartMode
from installer.decide.plan import Plan
from installer.decide.rows import Record
from installer.decide.steps import Reload
from installer.host.events import log
from installer.host.files import Host
from installer.record import nri_seen, refused, running, watching
from installer.record.below import Below, below
from installer.record.seen import EngineSeen


def engines(
    host: Host, plan: Plan, under: Mapping[str, Below], *, proven: bool, asking: bool
) -> Iterator[EngineSeen]:
    """Yield what each engine serves after a plan was carried out, or, where not ``proven``, without it.

    ``asking`` has their own programs say whether they would come up with the configs that lie there, and
    ``under`` is what is below each.
    """
    refusals = refused.refusals(host, plan.engines.values()) if asking else {}
    reasons = {
        step.engine: why
        for step, why in zip(plan.steps, plan.why, strict=True)
        # One that serves may have to read what its owner has changed all the same.
        if isinstance(step, Reload) and not proven and not plan.already_serves(step)
    }
    for each in plan.engines.values():
        found = under.get(each.name, Below())
        yield EngineSeen(
            each.name,
            None if each.name in plan.unproven else each.name not in reasons,
            differs=reasons.get(each.name, ""),
            process=watching.process_of(host, each),
            refused=refusals.get(each.name, ""),
            containerd=found.containerd,
            monitor=found.monitor,
        )


def below_each(host: Host, layout: Layout, plan: Plan, before: Iterable[EngineSeen]) -> dict[str, Below]:
    """Return what is below each engine that answers.

    Raises:
        InstallerError: one could start no container with it.
    """
    known = {each.name: Below(each.containerd, each.monitor) for each in before}
    answering = [each for each in plan.engines.values() if each.serving is not None]
    return {each.name: below(host, each, layout.toolkit, known.get(each.name, Below())) for each in answering}


def to_come(host: Host, options: Options, plan: Plan) -> Iterator[InstallerError]:
    """Yield why engines do not serve yet what they are going to."""
    yield from plan.pending.values()
    if options.serves_nri and not nri_seen.is_registered(host, options.nri):
        yield InstallerError(
            "serve pods over NRI (no engine has taken the NRI plugin)",
            remedy="wait for it; if that lasts, see status, and whether the engine has NRI switched on",
            code="nri-unusable",
        )
    left = [plan.engines[name] for name in plan.unproven if options.restart_mode is RestartMode.NONE]
    for title in (each.title for each in left if each.hook is None and each.serving is not None):
        yield InstallerError(
            f"prove that {title} serves our runtimes (it has not read its configs since)",
            remedy=Remedy("restart it, for ", Option("restart-mode", "none"), " leaves that to you"),
            code="engine-not-proven",
        )


def all_serve(host: Host, options: Options, plan: Plan, engines: Iterable[EngineSeen]) -> bool:
    """Tell whether no engine was seen that does not serve, or does not yet."""
    return all(each.serves is not False for each in engines) and not any(to_come(host, options, plan))


def stopped(options: Options, held: Record, plan: Plan) -> tuple[str, ...]:
    """Return the engines that we have configured, are asked to configure, and did not find running."""
    names = options.engine_names
    return tuple(row.name for row in held.engines if row.name in names and row.name not in plan.engines)


def refuse_stopped(names: Iterable[str]) -> None:
    """Raise where an engine that we have configured does not run: it would not be asked."""
    for title in (ENGINES[name].title for name in names):
        raise InstallerError(
            f"prove that {title} serves our runtimes (it does not run: nobody listens on its socket)",
            remedy=f"start {title}; if it runs, somebody has removed its socket: restart both",
            code="engine-not-proven",
        )


def low_level(host: Host, layout: Layout, held: Record, known: str) -> str:
    """Return the runtime that ours start, "" where none is found.

    Raises:
        InstallerError: there was one, the ``known``, and is none any more.
    """
    found = running.handed_over_to(host, layout, held)
    if found is None and known:
        raise InstallerError(
            f"start containers with our runtimes ({known}, which they start, is no program any more)",
            remedy=f"install it again, or name another one in {layout.config}",
            code="no-low-level-runtime",
        )
    return str(found or "")


def tell_refusals(engines: Iterable[EngineSeen], before: Iterable[EngineSeen]) -> None:
    """Tell, once, which engines would not come up again with the configs that lie there."""
    known = {each.name: each.refused for each in before}
    for each in engines:
        if (error := each.refusal) is not None and each.refused != known.get(each.name):
            log.warning("config refused", code=error.code, problem=error.problem, remedy=error.remedy)
