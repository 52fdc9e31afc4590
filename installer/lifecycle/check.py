"""One check of the node while ``run`` waits: find the drift from the install, then repair or report it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum, auto
from time import monotonic, sleep
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from installer import watch
from installer.cdi import generate as gpus
from installer.cdi.plan import STALE
from installer.change.ledger import Ledger
from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.errors import OWNERS_ACTS, RUN_AGAIN, InstallerError, NotYetError, Option, Remedy, StoppedError
from installer.host import supervision
from installer.host.events import internal_errors, log, log_others
from installer.host.files import Host
from installer.host.sockets import has_closed
from installer.lifecycle import drift, engine_checks, readiness
from installer.lifecycle.installation_report import read_installation
from installer.lifecycle.last_check import (
    NOT_RUNNING,
    EngineCheck,
    LastCheck,
    Problem,
    Repair,
    add_since,
    publish_check,
    read_check,
    read_check_of_boot,
)
from installer.lifecycle.node_turns import NodeTurns, TurnWaitError
from installer.lifecycle.uninstall import node_stops
from installer.lifecycle.watched_places import keep_live, list_places, list_sockets, list_start_files
from installer.metrics import snapshot as metrics
from installer.model.facts import Record
from installer.model.options import Drift, Options, RestartMode
from installer.model.steps import describe
from installer.nri.state import is_registered
from installer.watch import Watch, fingerprint

KEPT_CHECKS: Final = 16
LOUD_FAILURES: Final = 2
IGNORED_S: Final = 60.0  # as often as a serving engine is asked for a sign of life
PENDING_S: Final = 10.0  # a healthy engine creates and starts a container within a second or two
STOPS_S: Final = 60.0
CHECK_AGAIN: Final = "-"  # a fingerprint that no node has


class Work(Struct, frozen=True):
    """A node to check: ``plan`` returns the plan of an install, ``carry_out`` executes a plan.

    ``turns`` are the node's turns for restarts of engines.
    """

    host: Host
    options: Options
    ledger: Ledger
    plan: Callable[[], Plan]
    carry_out: Callable[[Plan], None]
    turns: NodeTurns


class Baseline(Enum):
    """Which fingerprint the supervisor compares the node with: a difference starts the next check."""

    BEFORE_CHECK = auto()  # that before the check, because the check has written no file
    AFTER_CHECK = auto()  # that after the check, because the check has written files
    NONE = auto()  # none: the next check begins at once


def take_fingerprint(work: Work) -> str:
    """Return the present fingerprint of the places to watch, before an install that may have to wait."""
    return fingerprint(_Check(work, asked=False).places())


def publish_wait(work: Work, error: InstallerError, fingerprint_before: str, reason: str) -> Watch:
    """Publish the reason why an install waits; return the paths to watch until the next try.

    Args:
        work: the node, as before the install.
        error: the reason.
        fingerprint_before: the fingerprint of the node at the beginning of the install.
        reason: why a waiting install was started again, in the words of ``Supervisor``; "" for the first try.
    """
    check = _Check(work, asked=reason == "asked")
    check.fingerprint_before = fingerprint_before
    check.baseline = Baseline.BEFORE_CHECK
    if isinstance(error, TurnWaitError):
        answer = check.end_waiting_for_turn(error, is_new=not reason)
    elif error.code in OWNERS_ACTS:
        answer = check.end_waiting_for_owner(error, is_new=not reason)
    else:  # for instance, an engine that its owner restarts does not answer for a moment
        answer = check.fail(error)
    if work.ledger.record.nri is None:  # no earlier install needs the NRI plugin, and this one has not begun
        answer.sidecars = watch.METRICS
    return answer


def conclude_install(work: Work, plan: Plan, *, asked: bool = False) -> Watch:
    """Publish the result of an install; return the paths to watch from here on."""
    check = _Check(work, asked=asked)
    # The driver may have changed since nvidia-ctk read it, and all our files are good: check once more.
    if check.record.cdi:
        check.baseline = Baseline.NONE
    try:
        check.prove(plan)
    except InstallerError as error:
        return check.fail(error)
    return check.conclude(plan)


def check_node(work: Work, *, asked: bool) -> Watch:
    """Check the node and repair drift as the policy or a user wants; return the paths to watch.

    Args:
        work: the node.
        asked: a user asked for this check (SIGHUP, ``reconcile``).
    """
    supervision.raise_if_stopped()
    await_stopped(work.host, work.options, work.ledger.record)
    check = _Check(work, asked=asked)
    check.use_present_baseline()
    first_result = check.result
    ledger = [(watch.PATH, str(work.host.local_path(work.options.layout.ledger)))]
    ledger_before = fingerprint(ledger)
    try:
        with internal_errors():
            return check.run()
    except StoppedError:
        raise
    except InstallerError as error:
        check.result = first_result
        check.baseline = Baseline.BEFORE_CHECK
        if isinstance(error, NotYetError):
            work.turns.give_back()
            return check.end_unready(error, monotonic() + PENDING_S)
        if fingerprint(ledger) != ledger_before:  # our own writes, rolled back, start no check
            check.baseline = Baseline.AFTER_CHECK
        return check.fail(error)


class _Check:
    """One check.

    Attributes:
        previous: The result of the last check.
        result: The growing result of this check.
        baseline: Which fingerprint the supervisor compares the node with.
        fingerprint_before: The fingerprint before the check.
    """

    def __init__(self, work: Work, *, asked: bool) -> None:
        self.work = work
        self.host = work.host
        self.options = work.options
        self.previous = read_check_of_boot(work.host, work.options.state_file)
        self.result = replace(
            self.previous,
            ignores_drift=work.options.drift is Drift.IGNORE,
            repair=Repair(),
            asked=asked,
            number=self.previous.number + 1,
            began_s=monotonic(),
        )
        self.baseline = Baseline.AFTER_CHECK
        self.fingerprint_before = ""

    @property
    def record(self) -> Record:
        return self.work.ledger.record

    def note(self, **facts: Any) -> None:
        self.result = replace(self.result, **facts)

    def note_pace(self, **facts: Any) -> None:
        self.result = self.result.with_pace(**facts)

    def run(self) -> Watch:
        """Plan, then repair the drift or leave it alone."""
        try:
            plan = self.work.plan()
        except InstallerError as error:
            if error.code in OWNERS_ACTS:
                return self.end_waiting_for_owner(error, is_new=False)
            # Name the first configured engine instead of "no engine".
            if error.code == "engine-not-found" and self.record.engines:
                raise engine_checks.explain_stopped(self.host, self.record.engines[0]) from error
            raise
        drifted = drift.Drifted.of(plan, self.record, self.previous.edited_configs)
        if not self.result.asked:
            refusal = self.find_refusal(plan, drifted)
            if refusal is not None:
                ignored = self.options.drift is Drift.IGNORE and bool(drifted.things)
                return self.leave(plan, refusal, ignored=ignored)
        try:
            admitted = self.work.turns.admit(plan, self.work.plan, asked=self.result.asked)
        except TurnWaitError as error:
            return self.end_waiting_for_turn(error, is_new=False)
        if admitted is not plan:
            plan = admitted
            drifted = drift.Drifted.of(plan, self.record, self.previous.edited_configs)
        self.repair(plan, drifted)
        self.prove(plan)
        if drifted.things or plan.reloaded:  # a restarted engine is another process
            self.baseline = Baseline.AFTER_CHECK
        self.publish_success(plan)
        return self.conclude(plan)

    def prove(self, plan: Plan) -> None:
        """Note the state of the engines after a plan.

        Raises:
            InstallerError: an engine is stopped, or starts no container.
        """
        self.ask_engines(plan, proven=True)
        self.result = self.result.without_problem()

    def conclude(self, plan: Plan) -> Watch:
        reason = next(list_pending_restarts(self.work, plan), None)
        if reason is not None:
            if plan.pending:  # a turn for a restart that has to wait is another node's
                self.work.turns.give_back()
            return self.end_unready(reason, monotonic() + PENDING_S)
        return self.end_proven(plan)

    def publish_success(self, plan: Plan) -> None:
        refusing = [each.name for each in self.result.engines if each.start_failure]
        metrics.publish_success(self.host, self.options, self.work.ledger, plan, refusing)

    def find_refusal(self, plan: Plan, drifted: drift.Drifted) -> drift.Refusal | None:
        policy = self.options.drift
        refusal = drift.find_refusal(policy, drifted, self.result.pace.repairs, monotonic(), readiness.clock)
        if refusal is None and (drifted.things or plan.reloaded) and node_stops(self.host):
            reason = InstallerError(
                "repair the node (it is going down)", remedy="look again after its boot", code="drifted"
            )
            return drift.Refusal(reason)
        return refusal

    def repair(self, plan: Plan, drifted: drift.Drifted) -> None:
        """Carry the plan out; publish the steps before, because a repair may be killed."""
        began_s = self.result.began_s
        if drifted.things or plan.reloaded:
            steps = tuple(describe(step).text for step in plan.steps)
            repairs: drift.Repairs = {}
            if not self.result.asked:
                repairs = drift.add_repair(self.result.pace.repairs, drifted.things, monotonic())
            self.note(repair=Repair(under_way=steps))
            self.note_pace(repairs=repairs, idle_checks=())
            publish_check(self.host, self.options.state_file, self.result)
        if drifted.things:
            log.warning("drift found", found=drifted.summary, repair=list(self.result.repair.under_way))
        self.work.carry_out(plan)
        if drifted.things:
            log.info("drift repaired", steps=len(plan.steps), seconds=round(monotonic() - began_s, 3))
        elif plan.reloaded:
            log.info("pending restart done", engines=list(plan.reloaded))
        elif self.result.asked:
            log.info("nothing changed", engines=sorted(plan.engines))
        self.note(repair=Repair(done=self.result.repair.under_way))

    def leave(self, plan: Plan, refusal: drift.Refusal, *, ignored: bool) -> Watch:
        """Leave drift alone; a node with ignored drift is ready as long as its engines serve."""
        work = self.work
        reason = refusal.reason
        specification = drift.select_specification(plan, self.record)
        if specification is not None:
            work.carry_out(specification)
            self.baseline = Baseline.NONE
        elif any(planned_reason == STALE for _, planned_reason in plan.planned):
            # A stale specification is no drift.
            gpus.withdraw_stale(self.host, self.options, work.ledger.record, work.ledger.write)
        self.ask_engines(plan, proven=False, asking=ignored)
        serve = all(each.serves is not False for each in self.result.engines)
        if ignored and serve and not any(list_pending_restarts(work, plan)):
            untouched = replace(plan, parts=())
            self.publish_success(untouched)
            # The next check comes soon, because a reload changes no file.
            self.result = self.result.without_problem()
            self.note_pace(next_check_s=monotonic() + IGNORED_S)
            return self.end_proven(untouched)
        problem = Problem.of(reason)
        known = self.previous.problem
        if known is None or (problem.code, problem.text) != (known.code, known.text):
            log_drift = log.error if reason.code == "drift-repeats" else log.warning
            log_drift("drift not repaired", code=reason.code, problem=reason.problem, remedy=reason.remedy)
            metrics.publish_failure(self.host, self.options, work.ledger, reason)
        return self.end_unready(reason, refusal.until_s)

    def end_unready(self, reason: InstallerError, next_check_s: float) -> Watch:
        """Publish why the node is not ready, and when the next check begins."""
        self.withdraw()
        self.result = self.result.with_error(reason).with_pace(next_check_s=next_check_s)
        answer, _ = self.publish_result()
        return answer

    def fail(self, error: InstallerError) -> Watch:
        """Publish why the check has failed; each failure in a row delays the next check further."""
        failures = self.note_failure()
        # An engine that its owner restarts does not answer for a moment: the second failure counts.
        if self.result.asked or failures == LOUD_FAILURES:
            log.warning("not reconciled", code=error.code, problem=error.problem, remedy=error.remedy)
            log_others(error)
        self.withdraw()  # before anything else that may fail
        metrics.publish_failure(self.host, self.options, self.work.ledger, error)
        self.work.turns.settle(failure=str(error))
        if self.baseline is Baseline.AFTER_CHECK:
            self.use_present_baseline()
        delay_s = drift.RETRIES_S[min(failures, len(drift.RETRIES_S)) - 1]
        return self.end_unready(error, monotonic() + delay_s)

    def note_failure(self) -> int:
        """Note the failure of this check; return the number of failures in a row."""
        last_pace = self.previous.pace
        engine_starts = fingerprint(list_start_files(self.host, self.options, self.record))
        engine_started = last_pace.failures > 0 and engine_starts != last_pace.engine_starts
        failures = last_pace.failures + 1
        if engine_started or self.result.asked:
            # The delays begin anew for a started engine and for a user's request: the cause may go soon.
            failures = 1
        idle_checks = self.result.pace.idle_checks
        if engine_started:
            # An engine that starts again and again is checked as rarely as a file that is always written.
            idle_checks += (self.result.began_s,)
        engines = []
        for each in self.previous.engines:
            process = keep_live(each.process)
            engines.append(replace(each, serves=None, difference="", process=process))
        self.note(engines=add_since(engines, self.previous.engines))
        self.note_pace(
            failures=failures,
            engine_starts=engine_starts,
            idle_checks=idle_checks,
            # ``result`` is without the failed repair, which the file of the last check has.
            repairs=read_check_of_boot(self.host, self.options.state_file).pace.repairs,
        )
        return failures

    def end_waiting_for_owner(self, error: InstallerError, *, is_new: bool) -> Watch:
        """Publish a problem for the owner; a node with the ledger's runtimes in force stays ready.

        Nothing was changed. The problem is logged and counted once, not at each try.

        Args:
            error: the problem.
            is_new: log and count the problem although the last check has found the same.
        """
        reason = _say_that_run_goes_on(error)
        problem = Problem.of(reason)
        known = self.previous.problem
        if known is None or (problem.code, problem.text) != (known.code, known.text):
            is_new = True
        if is_new or self.result.asked:
            log.warning(
                "waiting for the owner", code=reason.code, problem=reason.problem, remedy=reason.remedy
            )
            log_others(error)
        return self.end_waiting(reason, error.watched, 0.0, counts=is_new)

    def end_waiting_for_turn(self, error: TurnWaitError, *, is_new: bool) -> Watch:
        """Publish that the node waits for a turn; a node with the ledger's runtimes in force stays ready.

        Nothing was changed. Each change of the reason is logged, except a change of the other nodes that
        hold turns.

        Args:
            error: the reason.
            is_new: log the reason although the last check has found the same.
        """
        if is_new or self.result.asked or self.previous.turn.told != error.told:
            log.warning("waiting for a turn", code=error.code, problem=error.problem, remedy=error.remedy)
        return self.end_waiting(error, (), error.next_try_s, counts=False)

    def end_waiting(
        self, reason: InstallerError, awaited: "tuple[watch.Place, ...]", next_check_s: float, *, counts: bool
    ) -> Watch:
        """Publish why the next change waits; a node with the ledger's runtimes in force stays ready.

        Args:
            reason: the reason.
            awaited: the places that change when the reason goes.
            next_check_s: the time of the next check if nothing changes; 0 for the usual time.
            counts: the reason counts as a failure in the metrics.
        """
        last = {check.name: check for check in self.previous.engines}
        checks = []
        for row in self.record.engines:
            last_check = last.get(row.name, EngineCheck(row.name))
            checks.append(engine_checks.check_row(self.host, row, last_check))
        is_installed = self.record.finished and bool(self.record.served)
        keeps_install = is_installed and all(check.serves for check in checks)
        self.result = self.result.with_error(reason).with_pace(next_check_s=next_check_s, failures=0)
        self.note(
            engines=add_since(checks, self.previous.engines), awaited=awaited, keeps_install=keeps_install
        )
        if not keeps_install:
            self.withdraw()
        serving = [check.name for check in checks if check.serves]
        metrics.publish_waiting(
            self.host, self.options, self.work.ledger, reason, serving, is_new=counts, ready=keeps_install
        )
        answer, ready = self.publish_result()
        if not keeps_install:
            return answer
        if ready:
            readiness.publish(self.host, self.options.ready_file, self.record)
        else:
            self.withdraw()
        answer.places += tuple(self.list_published())
        return answer

    def end_proven(self, plan: Plan) -> Watch:
        """Publish the check after a plan that was carried out, with its engines serving, then readiness."""
        if not plan.unverified_engines:
            self.work.turns.note_proof(plan)
        answer, ready = self.publish_result(
            changed=bool(plan.steps), specification_problem=plan.specification_problem
        )
        self.publish_readiness(plan, ready=ready)
        answer.due_s = self.settle_turn(answer.due_s)  # after readiness, for the API may be slow
        answer.places += tuple(self.list_published())
        return answer

    def publish_result(
        self, *, changed: bool = False, specification_problem: InstallerError | None = None
    ) -> tuple[Watch, bool]:
        """Publish the check; return what to watch, and whether nothing keeps the node from being ready.

        The fingerprint is taken first: what changes while the check is published starts the next check. The
        installation is judged last, because the judgement reads the published check.

        Args:
            changed: the check has changed the node.
            specification_problem: the failure of nvidia-ctk.
        """
        moment = monotonic()
        idle_checks = self.list_idle_checks(changed=changed)
        self.note_findings(specification_problem)
        self.note_pace(
            idle_checks=idle_checks[-KEPT_CHECKS:],
            repairs=drift.select_recent(self.result.pace.repairs, moment),
        )
        places = list(self.places())
        fingerprint_after = fingerprint(places)
        self.write_result()
        files_good, ready = self.judge_installation()

        for engine in self.result.engines:
            if engine.process:  # the end of the process starts a check
                places.append((watch.EXISTENCE, engine.process))
        answer = Watch(
            places,
            baseline=self.choose_baseline(fingerprint_after, files_good=files_good),
            due_s=self.find_next_check(moment),
            rest_s=drift.rest_s(idle_checks, moment),
        )
        return answer, ready

    def write_result(self) -> None:
        """Replace the file of the last check. A full disk is only logged, for no node depends on the file."""
        try:
            publish_check(self.host, self.options.state_file, self.result)
        except InstallerError as error:
            log.warning("check result not written", error=error)

    def note_findings(self, specification_problem: InstallerError | None) -> None:
        """Note what the check has found besides the engines."""
        problem: Problem | None = None
        if specification_problem is not None:
            problem = Problem.of(specification_problem)
        self.note(
            by_cdi=self.record.cdi is not None,
            specification_problem=problem,
            edited_configs=tuple(self.list_edited()),
            turn=self.work.turns.state,
        )

    def find_next_check(self, moment: float) -> float:
        """Return in how many seconds the next check is due if nothing changes, 0 for the usual time."""
        if self.result.pace.next_check_s:
            return max(1.0, self.result.pace.next_check_s - moment)
        if self.result.specification_problem is not None:
            return drift.UNMADE_S
        return 0.0

    def list_published(self) -> "Iterator[watch.Place]":
        """Yield the published files of a ready node; the loss of such a file starts a check.

        The check itself makes these files, so they are no part of the fingerprint.
        """
        for path in (self.options.ready_file, *self.record.published):
            local = self.host.local_path(path, last=False)
            if local.exists():
                yield watch.EXISTENCE, str(local)

    def settle_turn(self, due_s: float) -> float:
        """Settle the turn of this node; return when the next check is due, 0 for the usual time."""
        settle_s = self.work.turns.settle()
        if self.work.turns.state != self.result.turn:
            self.note(turn=self.work.turns.state)
            self.write_result()
        if not settle_s:
            return due_s
        return max(1.0, min(due_s or settle_s, settle_s))

    def list_idle_checks(self, *, changed: bool) -> tuple[float, ...]:
        """Return the begins of the last checks that found nothing, up to this check.

        Args:
            changed: this check has changed the node, so it has found something.
        """
        result = self.result
        # A check that waits for the owner or for a turn does nothing.
        waits = bool(result.awaited) or self.work.turns.state.cause != ""
        is_idle = result.problem is None or waits
        if self.baseline is not Baseline.AFTER_CHECK and is_idle and not (result.asked or changed):
            return (*result.pace.idle_checks, result.began_s)
        return result.pace.idle_checks if result.pace.failures else ()

    def judge_installation(self) -> tuple[bool, bool]:
        """Tell whether all installed files are good, and whether nothing keeps the node from being ready."""
        try:
            installation = read_installation(self.host, self.options)
            files_good = all(line.good for line in installation.files)
            ready = not installation.obstacle
        except InstallerError:
            return False, False
        return files_good, ready

    def publish_readiness(self, proven: Plan, *, ready: bool) -> None:
        """Publish readiness for a ``proven`` plan, or withdraw it from a node that is not ``ready``."""
        if not ready:  # a probe reads the readiness file only, and has to agree with status
            self.withdraw()
        elif not proven.unverified_engines:
            readiness.publish(self.host, self.options.ready_file, self.record)
            if self.previous.problem:  # the log must not end with that problem
                log.info("node became ready again", engines=sorted(proven.engines))

    def list_edited(self) -> Iterator[str]:
        """Yield the configs with more in them than our text; of a removed config, the last check knows."""
        for row in self.record.configs:
            if not row.syntax:
                continue
            with suppress(InstallerError):
                file = self.host.read(row.path)
                if file is None:
                    is_edited = str(row.path) in self.previous.edited_configs
                else:
                    is_edited = file.digest not in row.ours
                if is_edited:
                    yield str(row.path)

    def withdraw(self) -> None:
        readiness.remove(self.host, self.options.ready_file)

    def ask_engines(self, plan: Plan, *, proven: bool, asking: bool = True) -> None:
        """Note the state of the engines.

        Args:
            plan: the plan, with the observed engines.
            proven: the plan was carried out; else the reasons of the plan name the engines that do not serve.
            asking: raise where an engine is stopped or the runtime that ours start is gone, and have the
                engines' own programs validate the present configs.

        Raises:
            InstallerError: an engine is stopped, or starts no container.
        """
        layout = self.options.layout
        stopped = engine_checks.list_stopped(self.options, self.record, plan)
        if asking:
            if stopped:
                raise engine_checks.explain_stopped(self.host, stopped[0])
            known = self.result.low_level_runtime
            low_level = engine_checks.find_low_level(self.host, layout, self.record, known)
            self.note(low_level_runtime=low_level)
        checks = engine_checks.check_engines(
            self.host, layout, plan, self.previous, proven=proven, validates=asking
        )
        for row in stopped:
            checks.append(EngineCheck(row.name, serves=False, difference=NOT_RUNNING))
        self.log_new_refusals(checks)
        self.note(engines=add_since(checks, self.previous.engines))
        self.note_pace(failures=0)

    def log_new_refusals(self, checks: Iterable[EngineCheck]) -> None:
        """Log the configs that an engine refuses, once for each reason."""
        known = {check.name: check for check in self.previous.engines}
        for check in checks:
            if check.name in known and known[check.name].start_failure == check.start_failure:
                continue
            error = check.refusal
            if error is not None:
                log.warning("config refused", code=error.code, problem=error.problem, remedy=error.remedy)

    def use_present_baseline(self) -> None:
        """Count changes from the present state of the node."""
        self.fingerprint_before = fingerprint(self.places())
        self.baseline = Baseline.BEFORE_CHECK

    def choose_baseline(self, fingerprint_after: str, *, files_good: bool) -> str:
        """Return the fingerprint for the comparison, or ``CHECK_AGAIN``."""
        # With another fingerprint a file changed during the check, or is watched for the first time.
        if self.baseline is Baseline.BEFORE_CHECK and self.fingerprint_before == fingerprint_after:
            return fingerprint_after
        # Good files are still as the check wrote them; others were written since.
        if self.baseline is Baseline.AFTER_CHECK and files_good:
            return fingerprint_after
        return CHECK_AGAIN

    def places(self) -> "tuple[watch.Place, ...]":
        places = list_places(self.host, self.options, self.record, self.result)
        return tuple(dict.fromkeys((*places, *self.result.awaited)))


def _say_that_run_goes_on(error: InstallerError) -> InstallerError:
    """Drop the act of running again from the remedy: ``run`` waits for the rest."""
    act = Remedy.of(error.remedy).with_other_end(RUN_AGAIN, "")
    remedy = Remedy(*act.parts, "; run goes on by itself then")
    return InstallerError(error.problem, remedy=remedy, code=error.code)


def list_pending_restarts(work: Work, plan: Plan) -> Iterator[InstallerError]:
    """Yield why engines do not serve our runtimes yet."""
    options = work.options
    yield from plan.pending.values()
    if options.serves_nri and not is_registered(work.host, options.nri):
        problem = "serve pods over NRI (no engine has taken the NRI plugin)"
        remedy = "wait for it; if that lasts, see status, and whether the engine has NRI switched on"
        yield InstallerError(problem, remedy=remedy, code="nri-unusable")
    if options.restart_mode is not RestartMode.NONE:
        return
    for name in plan.unverified_engines:
        engine = plan.engines[name]
        if engine.hook is not None or engine.serving is None:
            continue
        yield InstallerError(
            f"verify that {engine.title} serves our runtimes (it has not read its configs since the install)",
            remedy=Remedy("restart it, for ", Option("restart-mode", "none"), " leaves that to you"),
            code="restart-pending",
        )


def await_stopped(host: Host, options: Options, record: Record) -> None:
    """Wait while a served Docker is being stopped, a minute at most."""
    # dockerd lives on until its containers have ended. systemd holds its socket too, and would start dockerd
    # again for a client that connects before that (engine-facts.md#dockerd-stop).
    last = read_check(host, options.state_file) or LastCheck()
    processes = {each.name: each.process for each in last.engines if each.serves}
    sockets = []
    for name, path in list_sockets(options, record).items():
        if ENGINES[name].has_socket_unit:
            sockets.append((processes.get(name, ""), str(host.local_path(path))))
    deadline = monotonic() + STOPS_S
    while monotonic() < deadline and any(has_closed(process, socket) for process, socket in sockets):
        supervision.raise_if_stopped()
        sleep(1)
