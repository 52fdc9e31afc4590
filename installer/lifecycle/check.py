"""One check of the node while ``run`` waits: what differs from the install, and what is done about it."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi.plan import STALE
from installer.change.plan import Plan
from installer.engines import ENGINES, dry_run
from installer.engines.containers import find_low_level_runtime
from installer.engines.dependencies import Dependencies, find_dependencies
from installer.errors import InstallerError, NotIdleError, Option, Remedy, StoppedError
from installer.host import signals
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.lifecycle import readiness, watching
from installer.lifecycle.drift import (
    UNMADE_S,
    Action,
    Decision,
    Drifted,
    decide,
    following,
    recent_repairs,
    rest_s,
    retry_s,
    with_repair,
)
from installer.lifecycle.installed import read_installation
from installer.lifecycle.readiness import EngineCheck, LastCheck, now_s
from installer.lifecycle.watching import Watch
from installer.model.facts import EngineState
from installer.model.options import Drift, Options, RestartMode
from installer.model.record import Record
from installer.model.steps import Reload, describe
from installer.nri.state import is_registered
from installer.watch import fingerprint

KEPT_LOOKS: Final = 16
LOUD_FAILURES: Final = 2
IGNORED_S: Final = 60.0  # as often as an engine that serves is asked for a sign of life
PENDING_S: Final = 10.0  # a container is created and started within a second or two, where nothing is wrong
CHECK_AGAIN: Final = "-"  # a fingerprint that the node never has


class Work(Struct, frozen=True):
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


def conclude_install(work: Work, plan: Plan) -> Watch:
    """Tell what came of an install; return what is watched from here on."""
    begun = _begin(work, asked=False)
    try:
        check = begun.ask_engines(plan, proven=True, asking=False)
        for reason in restarts_to_come(work, plan):
            return check.await_restart(reason)
        check = check.find_low_level()
    except InstallerError as error:
        return begun.fail(error)
    # A driver that has changed since nvidia-ctk looked at it shows in no file of ours; and an install that
    # changes nothing does not ask an engine about what others have written since its start.
    held = work.held()
    unread = held.cdi or any(
        dry_run.has_unread_configs(work.host, held, engine) for engine in plan.engines.values()
    )
    return replace(check, baseline=CHECK_AGAIN if unread else "").with_error(None).end(plan)


def check_node(work: Work, *, asked: bool) -> Watch:
    """Check the node, do what is to be done, and tell it; return what is watched from here on.

    ``asked`` says that somebody wants it put right now, whatever the policy.

    Raises:
        StoppedError: a stop is pending.
    """
    signals.check()
    begun = _begin(work, asked=asked)
    begun = replace(begun, baseline=fingerprint(begun.places()))
    ledger = (str(work.host.local_path(work.options.layout.ledger)),)
    ledger_before = fingerprint(ledger)
    try:
        with internal_errors():
            return begun.run()
    except StoppedError:
        raise
    except NotIdleError as error:
        return begun.await_restart(error)
    except InstallerError as error:
        if fingerprint(ledger) != ledger_before:  # what we have written and rolled back ourselves is no news
            begun = replace(begun, baseline="")
        return begun.fail(error)


def _begin(work: Work, *, asked: bool) -> "_Check":
    before = readiness.of_this_boot(work.host, work.options.state_file)
    fresh = replace(before, ignores=work.options.drift is Drift.IGNORE, doing=(), did=())
    now = replace(fresh, number=before.number + 1, began_s=now_s(), asked=asked)
    return _Check(work, before, now)


class _Check(Struct, frozen=True):
    """A check so far: ``before`` is what the last one saw, ``now`` what is seen in this one.

    ``baseline`` is the fingerprint that the node has until something changes: of before the check, "" for
    that of its end where it has written something, ``CHECK_AGAIN`` where something is to be read once more.
    """

    work: Work
    before: LastCheck
    now: LastCheck
    baseline: str = ""

    def note(self, **seen: Any) -> "_Check":
        return replace(self, now=replace(self.now, **seen))

    def with_error(self, error: InstallerError | None) -> "_Check":
        return replace(self, now=self.now.with_error(error))

    def run(self) -> Watch:
        """Plan, then repair or leave alone what differs."""
        work, engines_before, devices = self.work, self.fingerprint_engines(), self.fingerprint_devices()
        plan = _plan(work)
        # What came and went again meanwhile is in the plan, and in no fingerprint.
        check = self if self.fingerprint_devices() == devices else replace(self, baseline=CHECK_AGAIN)
        drifted = Drifted.of(plan, work.held())
        decision = check.decide(plan, drifted)
        if decision.action not in {Action.REPAIR, Action.NOTHING}:
            return check.leave(plan, decision)
        check = check.repair(plan, drifted)
        refuse_stopped(check.stopped(plan))
        check = check.find_low_level().ask_engines(plan, proven=True)
        work.looked(plan, check.refusing)
        check = check.with_error(None)
        wrote = bool(drifted.things or plan.reloaded)
        for reason in restarts_to_come(work, plan):
            return replace(check, baseline="" if plan.steps else check.baseline).await_restart(reason)
        if wrote:
            # One that was restarted before our write has not read it: only what we reload is asked again.
            unread = not drifted.engines and self.fingerprint_engines() != engines_before
            check = replace(check, baseline=CHECK_AGAIN if unread else "")
        return check.end(plan)

    def decide(self, plan: Plan, drifted: Drifted) -> Decision:
        if self.now.asked:
            return Decision(Action.REPAIR)
        decision = decide(self.work.options.drift, drifted, self.now.repairs, now_s(), readiness.clock)
        due = decision.action is Action.NOTHING and plan.reloaded
        if (due or decision.action is Action.REPAIR) and self.work.node_stops():
            reason = InstallerError(
                "repair the node (it is going down)", remedy="look again after its boot", code="drifted"
            )
            return Decision(Action.REPORT, reason)
        return decision

    def repair(self, plan: Plan, drifted: Drifted) -> "_Check":
        """Carry the plan out; what is about to be done is on the disk before, for we may be killed in it."""
        work, now, due = self.work, self.now, plan.reloaded
        if drifted.things or due:
            steps = tuple(describe(step) for step in plan.steps)
            repairs = {} if now.asked else with_repair(now.repairs, drifted.things, now_s())
            now = replace(now, doing=steps, repairs=repairs, looks=())
            readiness.publish_check(work.host, work.options.state_file, now)
        if drifted.things:
            log.warning("drift found", found=drifted.told, repair=list(now.doing))
        work.carry_out(plan)
        if drifted.things:
            log.info("drift repaired", steps=len(plan.steps), seconds=round(now_s() - now.began_s, 3))
        elif due:
            log.info("pending restart done", engines=list(due))
        elif now.asked:
            log.info("nothing changed", engines=sorted(plan.engines))
        return replace(self, now=replace(now, did=now.doing, doing=()))

    def leave(self, plan: Plan, decision: Decision) -> Watch:
        """Leave drift alone; ready is a node whose drift is ignored, as long as its engines serve."""
        work, check, ignored = self.work, self, decision.action is Action.IGNORE
        if (alone := following(plan, work.held())) is not None:
            work.carry_out(alone)
            check = replace(self, baseline=CHECK_AGAIN)
        elif STALE in plan.why:
            work.withdraw_stale()  # it is nobody's drift
        if ignored:
            refuse_stopped(check.stopped(plan))
            check = check.find_low_level()
        check = check.ask_engines(plan, proven=False, asking=ignored)
        serve = all(each.serves is not False for each in check.now.engines)
        if ignored and serve and not any(restarts_to_come(work, plan)):
            untouched = replace(plan, parts=())
            work.looked(untouched, check.refusing)
            # Soon, for no file tells of reloads.
            return check.with_error(None).note(until_s=now_s() + IGNORED_S).end(untouched)
        reason = decision.reason
        if reason is not None and (reason.code, reason.problem) != (self.before.code, self.before.problem):
            say = log.error if decision.action is Action.GIVE_UP else log.warning
            say("drift not repaired", code=reason.code, problem=reason.problem, remedy=reason.remedy)
            work.failed(reason)
        work.withdraw()
        return check.with_error(reason).note(until_s=decision.until_s).end()

    def await_restart(self, reason: InstallerError) -> Watch:
        """Tell that a restart is still to come; the node is checked again soon."""
        self.work.withdraw()
        return self.with_error(reason).note(until_s=now_s() + PENDING_S).end()

    def fail(self, error: InstallerError) -> Watch:
        """Tell why the check has failed; the next one comes later with each failure."""
        work, before = self.work, self.before
        now = self.now.with_failure(before, fingerprint(watching.signs(work.host, work.options, work.held())))
        # An engine that its owner restarts does not answer for a moment: the second check tells.
        if now.asked or now.failures == LOUD_FAILURES:
            log.warning("not reconciled", code=error.code, problem=error.problem, remedy=error.remedy)
        # With the one that has failed.
        repairs = readiness.of_this_boot(work.host, work.options.state_file).repairs
        engines = tuple(
            replace(each, serves=None, differs="", process=watching.running(each.process))
            for each in before.engines
        )
        now = replace(now, engines=readiness.with_since(engines, before.engines), repairs=repairs)
        check = replace(self, now=now).with_error(error).note(until_s=now_s() + retry_s(now.failures))
        work.withdraw()
        work.failed(error)
        places, rooms = check.places(), watching.rooms(work.host, work.options, work.held())
        unchanged = self.baseline in {"", fingerprint(places)}
        baseline = fingerprint((*places, *rooms)) if unchanged else CHECK_AGAIN
        return replace(check, baseline=baseline).end(rooms=rooms)

    def end(self, proven: Plan | None = None, rooms: tuple[str, ...] = ()) -> Watch:
        """Tell the check, and return what is watched.

        A plan that is ``proven`` is published last, and only where ``status`` would say so: a probe looks no
        further.
        """
        work, now, moment = self.work, self.now, now_s()
        found_nothing = bool(self.baseline) and not (now.problem or now.asked or (proven and proven.steps))
        looks = (*now.looks, now.began_s) if found_nothing else now.looks if now.failures else ()
        unmade = proven.unmade if proven else None
        now = replace(
            now,
            looks=looks[-KEPT_LOOKS:],
            repairs=recent_repairs(now.repairs, moment),
            by_cdi=work.held().cdi is not None,
            unmade=unmade.problem if unmade else "",
            unmade_remedy=str(unmade.remedy) if unmade else "",
        )
        watched = watching.places(work.host, work.options, work.held(), now)
        found = fingerprint(watched)
        try:
            readiness.publish_check(work.host, work.options.state_file, now)
        except InstallerError as error:
            log.warning("look not told", error=error)
        files_good, ready = _judge(work)
        # What was written is what is on the disk, where the files are good: else somebody has written since.
        baseline = self.baseline or (found if files_good else CHECK_AGAIN)
        due = max(1.0, now.until_s - moment) if now.until_s else UNMADE_S if unmade else 0.0
        watched = (*watched, *watching.processes(now), *rooms)
        if proven is not None:
            if ready:
                work.publish(proven)
            else:
                work.withdraw()
            watched = (*watched, *watching.told(work.host, work.options, work.held()))
        return Watch(watched, baseline, due, rest_s(looks, moment))

    def ask_engines(self, plan: Plan, *, proven: bool, asking: bool = True) -> "_Check":
        """Note what each engine serves after a plan was carried out, or, where not ``proven``, without it.

        ``asking`` has their own programs say whether they would come up with the configs that lie there.

        Raises:
            InstallerError: an engine that answers could start no container with its containerd and programs.
        """
        host, known = self.work.host, {each.name: each for each in self.before.engines}
        depends = {
            each.name: self.find_dependencies(each, known.get(each.name)) for each in plan.engines.values()
        }
        refusals = dry_run.refusals(host, plan.engines.values()) if asking else {}
        reasons = {
            step.engine: why
            for step, why in zip(plan.steps, plan.why, strict=True)
            # One that serves may have to read what its owner has changed all the same.
            if isinstance(step, Reload) and not proven and not plan.already_serves(step)
        }
        engines = [
            EngineCheck(
                name,
                None if name in plan.unproven else name not in reasons,
                differs=reasons.get(name, ""),
                process=watching.process_of(host, engine),
                refused=refusals.get(name, ""),
                containerd=depends[name].containerd,
                monitor=depends[name].monitor,
            )
            for name, engine in plan.engines.items()
        ]
        engines += [EngineCheck(name, serves=False, differs="it does not run") for name in self.stopped(plan)]
        for each in engines:
            news = each.name not in known or known[each.name].refused != each.refused
            if news and (error := each.refusal) is not None:
                log.warning("config refused", code=error.code, problem=error.problem, remedy=error.remedy)
        engines_since = readiness.with_since(engines, self.before.engines)
        return self.note(plan=plan.digest, engines=engines_since, failures=0)

    def find_dependencies(self, engine: EngineState, last: EngineCheck | None) -> Dependencies:
        """Return what an engine that answers starts containers with."""
        if engine.serving is None:
            return Dependencies()
        known = Dependencies(last.containerd, last.monitor) if last else Dependencies()
        return find_dependencies(self.work.host, engine, self.work.options.layout.toolkit, known)

    def stopped(self, plan: Plan) -> tuple[str, ...]:
        """Return the engines that we have configured, are asked to configure, and did not find running."""
        names = self.work.options.engine_names
        rows = self.work.held().engines
        return tuple(row.name for row in rows if row.name in names and row.name not in plan.engines)

    def find_low_level(self) -> "_Check":
        """Note the runtime that ours start, "" where none was ever found.

        Raises:
            InstallerError: there was one, and is none any more.
        """
        layout, known = self.work.options.layout, self.now.hands_over_to
        found = find_low_level_runtime(self.work.host, layout, self.work.held())
        if found is None and known:
            raise InstallerError(
                f"start containers with our runtimes ({known}, which they start, is no program any more)",
                remedy=f"install it again, or name another one in {layout.config}",
                code="no-low-level-runtime",
            )
        return self.note(hands_over_to=str(found or ""))

    @property
    def refusing(self) -> tuple[str, ...]:
        """The engines that would not come up again with the configs that lie there."""
        return tuple(each.name for each in self.now.engines if each.refused)

    def places(self) -> tuple[str, ...]:
        return watching.places(self.work.host, self.work.options, self.work.held(), self.now)

    def fingerprint_engines(self) -> str:
        work = self.work
        return fingerprint(watching.engine_places(work.host, work.options, work.held(), self.before))

    def fingerprint_devices(self) -> str:
        return watching.moment(self.work.host, self.work.options, self.work.held())


def _plan(work: Work) -> Plan:
    """Return the plan; where no engine runs at all, the error names one of those that were configured."""
    try:
        return work.plan()
    except InstallerError as error:
        if error.code == "engine-not-found":
            refuse_stopped(row.name for row in work.held().engines)
        raise


def _judge(work: Work) -> tuple[bool, bool]:
    """Return whether the files of ours are all good, and whether nothing keeps the node from being ready."""
    try:
        found = read_installation(work.host, work.options)
    except InstallerError:
        return False, False
    return all(line.good for line in found.files), not found.obstacle


def restarts_to_come(work: Work, plan: Plan) -> Iterator[InstallerError]:
    """Yield why engines do not serve yet what they are going to."""
    options = work.options
    yield from plan.pending.values()
    if options.serves_nri and not is_registered(work.host, options.nri):
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


def refuse_stopped(names: Iterable[str]) -> None:
    """Raise where an engine that we have configured does not run: it would not be asked."""
    for title in (ENGINES[name].title for name in names):
        raise InstallerError(
            f"prove that {title} serves our runtimes (it does not run: nobody listens on its socket)",
            remedy=f"start {title}; if it runs, somebody has removed its socket: restart both",
            code="engine-not-proven",
        )
