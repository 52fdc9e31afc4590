"""A look at the node while ``run`` waits: what differs from the install, what is done about it and told."""

from collections.abc import Callable, Collection
from typing import Final

from installer import serving
from installer.decide.data import dataclass, replace
from installer.decide.drift import (
    Action,
    Decision,
    Drifted,
    again_s,
    decide,
    following,
    recent_repairs,
    rest_s,
    retry_s,
    with_repair,
)
from installer.decide.errors import InstallerError, NotIdleError, StoppedError
from installer.decide.options import Drift, Options
from installer.decide.parts.gpus import STALE
from installer.decide.plan import Plan
from installer.decide.rows import Record
from installer.decide.steps import describe
from installer.host import signals
from installer.host.events import log
from installer.host.files import Host
from installer.record import refused, seen, watching
from installer.record.internal import internal_errors
from installer.record.seen import EngineSeen, Seen
from installer.record.watching import Watch
from installer.watch import fingerprint as signature

KEPT_LOOKS: Final = 16
LOUD_FAILURES: Final = 2
IGNORED_S: Final = 60.0  # as often as an engine that serves is asked for a sign of life
PENDING_S: Final = 10.0  # a container is created and started within a second or two, where nothing is wrong
ELSEWISE: Final = "-"


@dataclass(frozen=True, slots=True)
class Work:
    """What a look may do to the node that it looks at.

    ``plan`` says what an install would do, and ``carry_out`` does it, ``withdraw_stale`` what cannot wait for
    it; ``publish`` says that the engines are proven to serve, ``withdraw`` that they are not.
    ``node_stops`` tells whether the node is going down. ``looked``, with the engines that refuse their
    configs, and ``failed`` tell monitoring how a look has ended.
    """

    host: Host
    options: Options
    held: Callable[[], Record]
    plan: Callable[[], Plan]
    carry_out: Callable[[Plan], None]
    publish: Callable[[Plan], None]
    withdraw: Callable[[], None]
    withdraw_stale: Callable[[], None]
    looked: Callable[[Plan, Collection[str]], None]
    failed: Callable[[InstallerError], None]
    node_stops: Callable[[], bool]


def installed(work: Work, plan: Plan) -> Watch:
    """Tell what came of an install; return what is watched from here on."""
    before = seen.of_this_boot(work.host, work.options.state_file)
    now = _begun(work, before, asked=False)
    try:
        engines = _engines(work, plan, before, proven=True, asking=False)
        now = replace(now, plan=plan.digest, engines=engines, failures=0)
        for reason in serving.to_come(work.host, work.options, plan):
            return _pending(work, now, "", reason)
        now = _with_low_level(work, now)
    except InstallerError as error:
        return _failed(work, before, now, "", error)
    # A driver that has changed since nvidia-ctk looked at it shows in no file of ours; and an install that
    # changes nothing does not ask an engine about what others have written since its start.
    unread = any(refused.unread(work.host, work.held(), engine) for engine in plan.engines.values())
    return _ended(work, now.with_error(None), ELSEWISE if work.held().cdi or unread else "", plan)


def look(work: Work, *, asked: bool) -> Watch:
    """Look at the node, do about it what is to be done, and tell it; return what is watched from here on.

    ``asked`` says that somebody wants it put right now, whatever the policy.

    Raises:
        StoppedError: a stop is pending.
    """
    signals.check()
    before = seen.of_this_boot(work.host, work.options.state_file)
    now = _begun(work, before, asked=asked)
    as_found, ledger = signature(_places(work, now)), (str(work.host.local_path(work.options.layout.ledger)),)
    known = signature(ledger)
    try:
        with internal_errors():
            return _looked(work, before, now, as_found)
    except StoppedError:
        raise
    except NotIdleError as error:
        return _pending(work, now, as_found, error)
    except InstallerError as error:
        # What we have written and rolled back ourselves is no news.
        return _failed(work, before, now, as_found if signature(ledger) == known else "", error)


def _begun(work: Work, before: Seen, *, asked: bool) -> Seen:
    fresh = replace(before, ignores=work.options.drift is Drift.IGNORE, doing=(), did=())
    return replace(fresh, number=before.number + 1, began_s=seen.now_s(), asked=asked)


def _looked(work: Work, before: Seen, now: Seen, as_found: str) -> Watch:
    engines_before = _signature(work, before)
    moment = watching.moment(work.host, work.options, work.held())
    plan = _planned(work)
    if watching.moment(work.host, work.options, work.held()) != moment:
        as_found = ELSEWISE  # what came and went again meanwhile is in the plan, and in no signature
    drifted = Drifted.of(plan, work.held())
    decision = _decision(work, plan, drifted, now)
    if decision.action in {Action.REPAIR, Action.NOTHING}:
        now = _repaired(work, now, plan, drifted)
        serving.refuse_stopped(_stopped(work, plan))
        now = _with_low_level(work, now)
        engines = _engines(work, plan, before, proven=True)
        work.looked(plan, tuple(each.name for each in engines if each.refused))
        now = replace(now, plan=plan.digest, engines=engines, failures=0).with_error(None)
        for reason in serving.to_come(work.host, work.options, plan):
            return _pending(work, now, "" if plan.steps else as_found, reason)
        if not (drifted.things or plan.reloaded):
            return _ended(work, now, as_found, plan)
        # One that was restarted before our write has not read it: only what we reload is asked again.
        unread = not drifted.engines and _signature(work, before) != engines_before
        return _ended(work, now, ELSEWISE if unread else "", plan)
    if (alone := following(plan, work.held())) is not None:
        work.carry_out(alone)
        as_found = ELSEWISE
    elif STALE in plan.why:
        work.withdraw_stale()  # it is nobody's drift
    ignored = decision.action is Action.IGNORE
    if ignored:
        serving.refuse_stopped(_stopped(work, plan))
        now = _with_low_level(work, now)
    engines = _engines(work, plan, before, proven=False, asking=ignored)
    now = replace(now, plan=plan.digest, engines=engines, failures=0)
    if ignored and serving.all_serve(work.host, work.options, plan, engines):
        return _left(work, now, as_found, plan)
    assert decision.reason is not None  # noqa: S101 - what is left alone has a reason
    _tell(work, before, decision)
    work.withdraw()
    now = replace(now.with_error(decision.reason), until_s=decision.until_s)
    return _ended(work, now, as_found)


def _left(work: Work, now: Seen, as_found: str, plan: Plan) -> Watch:
    """Tell a look at drift that is ignored while engines serve: again soon, for no file tells of reloads."""
    untouched = replace(plan, parts=())
    work.looked(untouched, tuple(each.name for each in now.engines if each.refused))
    now = replace(now.with_error(None), until_s=seen.now_s() + IGNORED_S)
    return _ended(work, now, as_found, untouched)


def _planned(work: Work) -> Plan:
    """Return the plan; where no engine runs at all, the error names one of those that were configured."""
    try:
        return work.plan()
    except InstallerError as error:
        if error.code == "engine-not-found":
            serving.refuse_stopped(row.name for row in work.held().engines)
        raise


def _pending(work: Work, now: Seen, as_found: str, reason: InstallerError) -> Watch:
    """Tell that a restart is still to come; the node is looked at again soon."""
    work.withdraw()
    return _ended(work, replace(now.with_error(reason), until_s=seen.now_s() + PENDING_S), as_found)


def _decision(work: Work, plan: Plan, drifted: Drifted, now: Seen) -> Decision:
    if now.asked:
        return Decision(Action.REPAIR)
    decision = decide(work.options.drift, drifted, now.repairs, seen.now_s(), seen.clock)
    due = decision.action is Action.NOTHING and plan.reloaded
    if (due or decision.action is Action.REPAIR) and work.node_stops():
        reason = InstallerError(
            "repair the node (it is going down)", remedy="look again after its boot", code="drifted"
        )
        return Decision(Action.REPORT, reason)
    return decision


def _repaired(work: Work, now: Seen, plan: Plan, drifted: Drifted) -> Seen:
    """Carry the plan out; what is about to be done is on the disk before, for we may be killed in it."""
    due = plan.reloaded
    if drifted.things or due:
        steps = tuple(describe(step) for step in plan.steps)
        repairs = {} if now.asked else with_repair(now.repairs, drifted.things, seen.now_s())
        now = replace(now, doing=steps, repairs=repairs, looks=())
        seen.publish(work.host, work.options.state_file, now)
    if drifted.things:
        log.warning("drift found", found=drifted.told, repair=list(now.doing))
    work.carry_out(plan)
    if drifted.things:
        log.info("drift repaired", steps=len(plan.steps), seconds=round(seen.now_s() - now.began_s, 3))
    elif due:
        log.info("pending restart done", engines=list(due))
    elif now.asked:
        log.info("nothing changed", engines=sorted(plan.engines))
    return replace(now, did=now.doing, doing=())


def _failed(work: Work, before: Seen, now: Seen, as_found: str, error: InstallerError) -> Watch:
    now = now.with_failure(before, signature(watching.signs(work.host, work.options, work.held())))
    # An engine that its owner restarts does not answer for a moment: the second look tells.
    if now.asked or now.failures == LOUD_FAILURES:
        log.warning("not reconciled", code=error.code, problem=error.problem, remedy=error.remedy)
    repairs = seen.of_this_boot(work.host, work.options.state_file).repairs  # with the one that has failed
    engines = tuple(
        replace(each, serves=None, differs="", process=watching.running(each.process))
        for each in before.engines
    )
    now = replace(now, engines=seen.with_since(engines, before.engines), repairs=repairs)
    now = replace(now.with_error(error), until_s=seen.now_s() + retry_s(now.failures))
    work.withdraw()
    work.failed(error)
    places, rooms = _places(work, now), watching.rooms(work.host, work.options, work.held())
    as_found = signature((*places, *rooms)) if as_found in {"", signature(places)} else ELSEWISE
    return _ended(work, now, as_found, rooms=rooms)


def _tell(work: Work, before: Seen, decision: Decision) -> None:
    reason = decision.reason
    if reason is None or (reason.code, reason.problem) == (before.code, before.problem):
        return
    say = log.error if decision.action is Action.GIVE_UP else log.warning
    say("drift not repaired", code=reason.code, problem=reason.problem, remedy=reason.remedy)
    work.failed(reason)


def _ended(
    work: Work, now: Seen, as_found: str, proven: Plan | None = None, rooms: tuple[str, ...] = ()
) -> Watch:
    """Tell the look, and return what is watched; ``as_found`` is "" where something was written.

    What was written then is what is on the disk, if ``status`` has nothing to say against it. A plan that is
    ``proven`` is published last, and only where ``status`` would say so: a probe looks no further.
    """
    found_nothing = bool(as_found) and not (now.problem or now.asked or (proven and proven.steps))
    looks = (*now.looks, now.began_s) if found_nothing else now.looks if now.failures else ()
    moment, by_cdi = seen.now_s(), work.held().cdi is not None
    now = replace(now, looks=looks[-KEPT_LOOKS:], repairs=recent_repairs(now.repairs, moment), by_cdi=by_cdi)
    now = now.with_generation(proven.unmade if proven else None)
    watched = _places(work, now)
    found = signature(watched)
    try:
        seen.publish(work.host, work.options.state_file, now)
    except InstallerError as error:
        log.warning("look not told", error=error)
    from installer.status import judged  # which a first start need not load

    good, well = judged(work.host, work.options)
    # Or what the node never is, where somebody has written since.
    as_found = as_found or (found if good else ELSEWISE)
    due = max(1.0, now.until_s - moment) if now.until_s else again_s(proven)
    watched = (*watched, *watching.processes(now), *rooms)
    if proven is not None:
        (work.publish if well else lambda _: work.withdraw())(proven)
        told = watching.told(work.host, work.options, work.held())
        watched = (*watched, *told)
    return Watch(watched, as_found, due, rest_s(looks, moment))


def _engines(
    work: Work, plan: Plan, before: Seen, *, proven: bool, asking: bool = True
) -> tuple[EngineSeen, ...]:
    silent = (EngineSeen(name, serves=False, differs="it does not run") for name in _stopped(work, plan))
    under = serving.below_each(work.host, work.options.layout, plan, before.engines)
    found = serving.engines(work.host, plan, under, proven=proven, asking=asking)
    engines = seen.with_since((*found, *silent), before.engines)
    serving.tell_refusals(engines, before.engines)
    return engines


def _stopped(work: Work, plan: Plan) -> tuple[str, ...]:
    return serving.stopped(work.options, work.held(), plan)


def _with_low_level(work: Work, now: Seen) -> Seen:
    found = serving.low_level(work.host, work.options.layout, work.held(), now.hands_over_to)
    return replace(now, hands_over_to=found)


def _places(work: Work, now: Seen) -> tuple[str, ...]:
    return watching.places(work.host, work.options, work.held(), now)


def _signature(work: Work, before: Seen) -> str:
    return signature(watching.engine_places(work.host, work.options, work.held(), before))
