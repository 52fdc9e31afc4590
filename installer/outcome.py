"""What an install tells: the engines that it has found, how it has ended, and what shows that it works."""

from installer.decide.engines import ENGINES
from installer.decide.engines.row import Api
from installer.decide.options import Options
from installer.decide.plan import Plan
from installer.decide.rows import Record
from installer.host.events import log


def tell_found(plan: Plan) -> None:
    """Tell what was found, before anything is done about it."""
    for engine in plan.engines.values():
        version = ".".join(map(str, engine.version or ())) or "unknown"
        log.info(
            "engine found", engine=engine.name, version=version, unit=engine.unit, config=str(engine.config)
        )
    for note in plan.notes:
        log.info("install note", note=note)


def tell_done(plan: Plan) -> None:
    """Tell what was done, and what is still to come."""
    if not plan.steps:
        log.info("nothing changed", engines=sorted(plan.engines))
    else:
        log.info("installed", engines=sorted(plan.engines), steps=len(plan.steps))
    for name, reason in plan.pending.items():
        log.warning("restart pending", engine=name, problem=reason.problem, remedy=reason.remedy)
    if unasked := [name for name in plan.unproven if name not in plan.pending]:
        log.warning("not proven", engines=unasked, reason="they have not said that they serve our runtimes")


def tell_next_step(options: Options, held: Record) -> None:
    """Tell the command that shows that it works."""
    command = "toolkit-installer status"
    if any(ENGINES[engine.name].api is Api.DOCKER for engine in held.engines):
        name = options.runtime_name
        command = f"docker run --rm --runtime={name} --env NVIDIA_VISIBLE_DEVICES=all ubuntu nvidia-smi"
    log.info("next step", command=command)
