"""One check of the node while ``run`` waits: what differs from the install, and what is done about it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from time import monotonic, sleep
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi import generate as gpus
from installer.cdi.plan import STALE
from installer.change.ledger import Ledger
from installer.change.plan import Plan
from installer.engines import ENGINES, dry_run
from installer.engines.containers import find_low_level_runtime
from installer.engines.dependencies import Dependencies, find_dependencies, specs_for
from installer.engines.observe import engine_of_row, list_asked
from installer.engines.restart import ask
from installer.errors import InstallerError, NotYetError, Option, Remedy, StoppedError
from installer.host import supervision, systemd
from installer.host.events import internal_errors, log, log_others
from installer.host.files import Host
from installer.host.inodes import is_mount_point
from installer.host.sockets import has_closed
from installer.lifecycle import drift, readiness
from installer.lifecycle.installation import read_installation
from installer.lifecycle.uninstall import node_stops
from installer.metrics import snapshot as metrics
from installer.model.engine_spec import Api
from installer.model.facts import EngineRow, EngineState, Record
from installer.model.options import Drift, Options, Places, RestartMode
from installer.model.steps import Reload, describe
from installer.nri.state import is_registered
from installer.watch import KEPT, THERE, fingerprint

KEPT_CHECKS: Final = 16
LOUD_FAILURES: Final = 2
IGNORED_S: Final = 60.0  # as often as an engine that serves is asked for a sign of life
PENDING_S: Final = 10.0  # a container is created and started within a second or two, where nothing is wrong
STOPS_S: Final = 60.0
CHECK_AGAIN: Final = "-"  # a fingerprint that the node never has


class Work(Struct, frozen=True):
    """A node that is checked: ``plan`` returns what an install would do, ``carry_out`` does it."""

    host: Host
    options: Options
    ledger: Ledger
    plan: Callable[[], Plan]
    carry_out: Callable[[Plan], None]


class Watch(Struct, frozen=True):
    """What is watched until the next check; no ``places`` is nothing."""

    places: tuple[str, ...] = ()  # paths as this process finds them, or patterns: as ``fingerprint`` has them
    before: str = ""  # the fingerprint that they had at the check
    due_s: float = 0.0  # after so many seconds (0 is never) it is time for a check whatever happens
    rest_s: float = 0.0  # before, no change is a reason for one


def conclude_install(work: Work, plan: Plan) -> Watch:
    """Tell what came of an install; return what is watched from here on."""
    check = _Check(work, asked=False)
    # A driver that has changed since nvidia-ctk looked at it shows in no file of ours.
    check.baseline = CHECK_AGAIN if check.record.cdi else ""
    try:
        check.prove(plan)
    except InstallerError as error:
        return check.fail(error)
    return check.conclude(plan)


def check_node(work: Work, *, asked: bool) -> Watch:
    """Check the node, put right what the policy or who has ``asked`` wants, and return what is watched."""
    supervision.raise_if_stopped()
    await_stopped(work.host, work.options, work.ledger.held)
    check = _Check(work, asked=asked)
    check.baseline = fingerprint(check.places())
    begun, baseline = check.now, check.baseline
    ledger = (str(work.host.local_path(work.options.layout.ledger)),)
    ledger_before = fingerprint(ledger)
    try:
        with internal_errors():
            return check.run()
    except StoppedError:
        raise
    except InstallerError as error:
        check.now, check.baseline = begun, baseline
        if isinstance(error, NotYetError):
            return check.end_unready(error, monotonic() + PENDING_S)
        if fingerprint(ledger) != ledger_before:  # what we have written and rolled back ourselves is no news
            check.baseline = ""
        return check.fail(error)


class _Check:
    """One check: ``before`` is what the last one saw, ``now`` what is seen so far.

    ``baseline`` is the fingerprint that the node has until something changes: of before the check, "" for
    that of its end where it has written something, ``CHECK_AGAIN`` where something is to be read once more.
    """

    def __init__(self, work: Work, *, asked: bool) -> None:
        self.work, self.host, self.options = work, work.host, work.options
        self.before = before = readiness.read_check_of_boot(work.host, work.options.state_file)
        fresh = replace(before, ignores=work.options.drift is Drift.IGNORE, doing=(), did=(), asked=asked)
        self.now = replace(fresh, number=before.number + 1, began_s=monotonic())
        self.baseline = ""

    @property
    def record(self) -> Record:
        return self.work.ledger.held

    def note(self, **seen: Any) -> None:
        self.now = replace(self.now, **seen)

    def run(self) -> Watch:
        """Plan, then repair or leave alone what differs."""
        try:
            plan = self.work.plan()
        except InstallerError as error:
            # The first of those that were configured is named instead.
            if error.code == "engine-not-found" and self.record.engines:
                raise explain_stopped(self.host, self.record.engines[0]) from error
            raise
        drifted = drift.Drifted.of(plan, self.record, self.before.edited)
        if not self.now.asked and (refusal := self.find_refusal(plan, drifted)):
            ignored = self.options.drift is Drift.IGNORE and bool(drifted.things)
            return self.leave(plan, refusal, ignored=ignored)
        self.repair(plan, drifted)
        self.prove(plan)
        if drifted.things or plan.reloaded:  # an engine that was restarted meanwhile is another process
            self.baseline = ""
        self.tell_success(plan)
        return self.conclude(plan)

    def prove(self, plan: Plan) -> None:
        """Note what engines serve after a plan; InstallerError: one is stopped, or starts no container."""
        self.ask_engines(plan, proven=True)
        self.now = self.now.with_error(None)

    def conclude(self, plan: Plan) -> Watch:
        for reason in list_pending_restarts(self.work, plan):
            return self.end_unready(reason, monotonic() + PENDING_S)
        return self.end(plan)

    def tell_success(self, plan: Plan) -> None:
        refusing = [each.name for each in self.now.engines if each.refused]
        metrics.publish_success(self.host, self.options, self.work.ledger, plan, refusing)

    def find_refusal(self, plan: Plan, drifted: drift.Drifted) -> drift.Refusal | None:
        policy, repairs = self.options.drift, self.now.repairs
        refusal = drift.find_refusal(policy, drifted, repairs, monotonic(), readiness.clock)
        if refusal is None and (drifted.things or plan.reloaded) and node_stops(self.host):
            reason, remedy = "repair the node (it is going down)", "look again after its boot"
            return drift.Refusal(InstallerError(reason, remedy=remedy, code="drifted"))
        return refusal

    def repair(self, plan: Plan, drifted: drift.Drifted) -> None:
        """Carry the plan out; what is about to be done is on the disk before, for we may be killed in it."""
        now, due = self.now, plan.reloaded
        if drifted.things or due:
            steps = tuple(describe(step).text for step in plan.steps)
            repairs = {} if now.asked else drift.add_repair(now.repairs, drifted.things, monotonic())
            self.note(doing=steps, repairs=repairs, looks=())
            readiness.publish_check(self.host, self.options.state_file, self.now)
        if drifted.things:
            log.warning("drift found", found=drifted.summary, repair=list(self.now.doing))
        self.work.carry_out(plan)
        if drifted.things:
            log.info("drift repaired", steps=len(plan.steps), seconds=round(monotonic() - now.began_s, 3))
        elif due:
            log.info("pending restart done", engines=list(due))
        elif now.asked:
            log.info("nothing changed", engines=sorted(plan.engines))
        self.note(did=self.now.doing, doing=())

    def leave(self, plan: Plan, refusal: drift.Refusal, *, ignored: bool) -> Watch:
        """Leave drift alone; ready is a node whose drift is ignored, as long as its engines serve."""
        work, reason = self.work, refusal.reason
        if (alone := drift.select_specification(plan, self.record)) is not None:
            work.carry_out(alone)
            self.baseline = CHECK_AGAIN
        elif any(reason == STALE for _, reason in plan.planned):
            # It is no drift.
            gpus.withdraw_stale(self.host, self.options, work.ledger.held, work.ledger.write)
        self.ask_engines(plan, proven=False, asking=ignored)
        serve = all(each.serves is not False for each in self.now.engines)
        if ignored and serve and not any(list_pending_restarts(work, plan)):
            untouched = replace(plan, parts=())
            self.tell_success(untouched)
            # Soon, for no file tells of reloads.
            self.now = replace(self.now.with_error(None), until_s=monotonic() + IGNORED_S)
            return self.end(untouched)
        if (reason.code, reason.problem) != (self.before.code, self.before.problem):
            say = log.error if reason.code == "drift-repeats" else log.warning
            say("drift not repaired", code=reason.code, problem=reason.problem, remedy=reason.remedy)
            metrics.publish_failure(self.host, self.options, work.ledger, reason)
        return self.end_unready(reason, refusal.until_s)

    def end_unready(self, reason: InstallerError | None, until_s: float) -> Watch:
        """Tell why the node is not ready; it is checked again at ``until_s``."""
        self.withdraw()
        self.now = replace(self.now.with_error(reason), until_s=until_s)
        return self.end()

    def fail(self, error: InstallerError) -> Watch:
        """Tell why the check has failed; the next one comes later with each failure."""
        host, options, now, before = self.host, self.options, self.now, self.before
        signs = fingerprint(list_signs(host, options, self.record))
        # Where an engine starts the pauses begin anew; so they do for who asks, for the cause may go soon.
        came = bool(before.failures) and signs != before.signs
        failures = 1 if came or now.asked else before.failures + 1
        # One that starts again and again is checked like a file that is written all the time.
        looks = (*now.looks, now.began_s) if came else now.looks
        # An engine that its owner restarts does not answer for a moment: the second check tells.
        if now.asked or failures == LOUD_FAILURES:
            log.warning("not reconciled", code=error.code, problem=error.problem, remedy=error.remedy)
            log_others(error)
        engines = tuple(
            replace(each, serves=None, differs="", process=keep_live(each.process)) for each in before.engines
        )
        self.note(
            failures=failures,
            signs=signs,
            looks=looks,
            engines=readiness.add_since(engines, before.engines),
            # With the one that has failed.
            repairs=readiness.read_check_of_boot(host, options.state_file).repairs,
        )
        self.withdraw()  # before all else that may fail
        metrics.publish_failure(host, options, self.work.ledger, error)
        self.baseline = self.baseline or fingerprint(self.places())
        return self.end_unready(error, monotonic() + drift.RETRIES_S[min(failures, len(drift.RETRIES_S)) - 1])

    def end(self, proven: Plan | None = None) -> Watch:
        """Tell the check, last of all that a plan is ``proven``, and return what is watched."""
        host, options, now, moment = self.host, self.options, self.now, monotonic()
        found_nothing = bool(self.baseline) and not (now.problem or now.asked or (proven and proven.steps))
        looks = (*now.looks, now.began_s) if found_nothing else now.looks if now.failures else ()
        unmade = proven.unmade if proven else None
        self.note(
            looks=looks[-KEPT_CHECKS:],
            repairs=drift.select_recent(now.repairs, moment),
            by_cdi=self.record.cdi is not None,
            unmade=unmade.problem if unmade else "",
            unmade_remedy=str(unmade.remedy) if unmade else "",
            edited=tuple(self.list_edited()),
        )
        watched = self.places()
        found = fingerprint(watched)
        if self.baseline not in {"", found}:  # something has changed meanwhile, or was not watched before
            self.baseline = CHECK_AGAIN
        try:
            readiness.publish_check(host, options.state_file, self.now)
        except InstallerError as error:
            log.warning("check result not written", error=error)
        try:
            installed = read_installation(host, options)
            files_good, ready = all(line.good for line in installed.files), not installed.obstacle
        except InstallerError:
            files_good = ready = False
        # What was written is what is on the disk, where the files are good: else it was written since.
        baseline = self.baseline or (found if files_good else CHECK_AGAIN)
        due = max(1.0, now.until_s - moment) if now.until_s else drift.UNMADE_S if unmade else 0.0
        watched = (*watched, *(each.process for each in now.engines if each.process))
        if proven is not None:
            if not ready:  # a probe looks no further than status would
                self.withdraw()
            elif not proven.unproven:
                readiness.publish(host, options.ready_file, self.record)
                if self.before.problem:  # which was logged: the last line shall not be that
                    log.info("node ready again", engines=sorted(proven.engines))
            # Readiness and metrics are to be there until they are removed.
            places = (
                host.local_path(path, last=False) for path in (options.ready_file, *self.record.published)
            )
            watched = (*watched, *(f"{THERE}{local}" for local in places if local.exists()))
        return Watch(watched, baseline, due, drift.rest_s(looks, moment))

    def list_edited(self) -> Iterator[str]:
        """Yield the configs that hold more than we wrote, or did when they were removed."""
        for row in (each for each in self.record.configs if each.syntax):
            with suppress(InstallerError):
                now = self.host.read(row.path)
                if now.digest not in row.ours if now else str(row.path) in self.before.edited:
                    yield str(row.path)

    def withdraw(self) -> None:
        readiness.remove(self.host, self.options.ready_file)

    def ask_engines(self, plan: Plan, *, proven: bool, asking: bool = True) -> None:
        """Note what engines serve, after a plan or, not ``proven``, without; raise where one starts nothing.

        ``asking`` raises also where one is stopped, or the runtime that ours start is gone, and has their own
        programs say whether they would come up with the configs that lie there.
        """
        # Those that we have configured, are asked to configure, and did not find running.
        asked = {spec.name for spec in list_asked(self.options)}
        stopped = [row for row in self.record.engines if row.name in asked and row.name not in plan.engines]
        if asking and stopped:
            raise explain_stopped(self.host, stopped[0])
        if asking:
            self.find_low_level()
        known = {each.name: each for each in self.before.engines}
        depends = {name: Dependencies() for name in plan.engines}
        read = plan.reloaded if proven else ()  # since it was observed
        seen = {name: ask(self.host, each) if name in read else each for name, each in plan.engines.items()}
        for name, engine in seen.items():
            if engine.serving is not None:
                last = known.get(name, readiness.EngineCheck(name))
                before = Dependencies(last.containerd, last.monitor)
                depends[name] = find_dependencies(self.host, engine, self.options.layout.toolkit, before)
        refusals = dry_run.find_refusals(self.host, seen.values()) if asking else {}
        serving = {name: engine.serving for name, engine in plan.engines.items() if engine.serving}
        reasons = {}
        for step, reason in plan.planned if not proven else ():
            if isinstance(step, Reload) and not (
                # One that serves may have to read what its owner has changed all the same.
                step.engine in serving and step.satisfied_by(serving[step.engine])
            ):
                reasons[step.engine] = reason
        engines = [
            readiness.EngineCheck(
                name,
                None if name in plan.unproven else name not in reasons,
                differs=reasons.get(name, ""),
                process=process_of(self.host, engine),
                refused=refusals.get(name, ""),
                containerd=depends[name].containerd,
                monitor=depends[name].monitor,
                hook=engine.hook is not None,
                program=engine.next_start.program if engine.next_start else "",
            )
            for name, engine in seen.items()
        ]
        engines += [
            readiness.EngineCheck(row.name, serves=False, differs=readiness.NOT_RUNNING) for row in stopped
        ]
        for each in engines:
            news = each.name not in known or known[each.name].refused != each.refused
            if news and (error := each.refusal) is not None:
                log.warning("config refused", code=error.code, problem=error.problem, remedy=error.remedy)
        engines_since = readiness.add_since(engines, self.before.engines)
        self.note(plan=plan.digest, engines=engines_since, failures=0)

    def find_low_level(self) -> None:
        """Note the runtime that ours start, "" where none was; InstallerError: there is none any more."""
        layout, known = self.options.layout, self.now.hands_over_to
        found = find_low_level_runtime(self.host, layout, self.record)
        if found is None and known:
            raise InstallerError(
                f"start containers with our runtimes ({known}, which they start, "
                "is missing or not executable)",
                remedy=f"install it again, or name another one in {layout.config}",
                code="no-low-level-runtime",
            )
        self.note(hands_over_to=str(found or ""))

    def places(self) -> tuple[str, ...]:
        return list_places(self.host, self.options, self.record, self.now)


def list_pending_restarts(work: Work, plan: Plan) -> Iterator[InstallerError]:
    """Yield why engines do not serve yet what they are going to."""
    options = work.options
    yield from plan.pending.values()
    if options.serves_nri and not is_registered(work.host, options.nri):
        problem = "serve pods over NRI (no engine has taken the NRI plugin)"
        remedy = "wait for it; if that lasts, see status, and whether the engine has NRI switched on"
        yield InstallerError(problem, remedy=remedy, code="nri-unusable")
    left = [plan.engines[name] for name in plan.unproven if options.restart_mode is RestartMode.NONE]
    for title in (each.title for each in left if each.hook is None and each.serving is not None):
        yield InstallerError(
            f"verify that {title} serves our runtimes (it has not read its configs since the install)",
            remedy=Remedy("restart it, for ", Option("restart-mode", "none"), " leaves that to you"),
            code="restart-pending",
        )


def explain_stopped(host: Host, row: EngineRow) -> InstallerError:
    """Return why an engine that we have configured cannot be asked: it does not run, or has no CRI."""
    title, reason = ENGINES[row.name].title, "it does not run: nothing answers on its socket"
    remedy = f"start {title}; if it runs, its socket was removed: restart both"
    if systemd.look_at_unit(host, row.unit).start.masked:
        remedy = f"run systemctl unmask {row.unit}, then start it"
    # A connection to docker.socket would start a Docker that its owner has stopped.
    if ENGINES[row.name].api is Api.CRI and ask(host, engine_of_row(row)).disabled:
        reason = "its CRI is switched off"
        remedy = "take cri out of disabled_plugins in its config, then restart it"
    problem = f"verify that {title} serves our runtimes ({reason})"
    return InstallerError(problem, remedy=remedy, code="engine-not-proven")


def list_places(host: Host, options: Options, record: Record, last: readiness.LastCheck) -> tuple[str, ...]:
    """Return what is watched but for engines' processes: one that ends meanwhile had not ended before."""
    layout = options.layout
    whole = [layout.version(record.toolkit.version)] if record.toolkit else []
    for row in record.engines:
        spec = ENGINES[row.name]
        own, drop_ins = row.config or spec.config, spec.drop_ins.directory
        whole += [own.parent, own.parent / "conf.d", *([drop_ins] if drop_ins else ())]
    found: list[str] = []
    for path in (*(row.path for row in record.configs), *whole, layout.toolkit, layout.config, layout.ledger):
        for followed in (False, True):
            local = host.local_path(path, last=followed)
            # What is held open of a file system that was mounted over ours keeps it from going.
            covered = path.is_relative_to(layout.home) and is_mount_point(local)
            found.append(f"{local}/" + "*" * covered if path in whole else str(local))
    found += gpus.list_watched(host, options, record)
    if record.nri is not None:  # it tells of itself there: registered or not, and what it has missed
        found.append(str(host.local_path(options.nri.at(record.nri).state)))
    programs = [last.hands_over_to, *(name for each in last.engines for name in (each.monitor, each.program))]
    paths = (PurePosixPath(name) for name in programs)
    found += [str(host.local_path(path, last=False)) for path in paths if path.is_absolute()]
    kept = [layout.toolkit]
    for specs in (specs_for(each.name) for each in last.engines):
        kept += [spec.state.usual for spec in specs] + [spec.data.usual for spec in specs if spec.data]
    found += [f"{KEPT}{host.local_path(path)}" for path in kept]
    below = (host.local_path(PurePosixPath(each.containerd)) for each in last.engines if each.containerd)
    return tuple(dict.fromkeys((*found, *list_signs(host, options, record), *map(str, below))))


def list_signs(host: Host, options: Options, record: Record) -> tuple[str, ...]:
    """Return what an engine that we serve makes at each start: its socket, or its pidfile."""
    sockets = _list_sockets(options, record)
    pidfiles = (path for name in sockets if (path := ENGINES[name].pidfile) is not None)
    return tuple(str(host.local_path(path)) for path in (*sockets.values(), *pidfiles))


def _list_sockets(options: Options, record: Record) -> dict[str, PurePosixPath]:
    """Return the socket of each engine that we serve; one that we have not changed has no row."""
    held = {row.name: row.socket for row in record.engines}
    unchanged = record.cdi.engines if record.cdi else ()
    return {
        name: options.places.get(name, Places()).socket or ENGINES[name].socket for name in unchanged
    } | held


def await_stopped(host: Host, options: Options, record: Record) -> None:
    """Return when no Docker of ours is just being stopped, or after a minute."""
    # It lives on until its containers have ended, and systemd, which holds its socket too, starts it again
    # for whoever asks meanwhile (engine-facts.md#dockerd-stop).
    before = readiness.read_check(host, options.state_file) or readiness.LastCheck()
    processes = {each.name: each.process for each in before.engines if each.serves}
    sockets = _list_sockets(options, record).items()
    ours = ((name, path) for name, path in sockets if ENGINES[name].api is Api.DOCKER)
    dockers = [(name, str(host.local_path(path))) for name, path in ours]
    until = monotonic() + STOPS_S
    while monotonic() < until and any(has_closed(processes.get(name, ""), path) for name, path in dockers):
        supervision.raise_if_stopped()
        sleep(1)


def process_of(host: Host, engine: EngineState) -> str:
    """Return where the process of an engine is found below /proc; "" where it is not seen."""
    if engine.pid:
        return f"/proc/{engine.pid}"
    # It is in another pid namespace, and perhaps the host's /proc is mounted. Its unit may run k3s around it.
    pid = systemd.look_at_unit(host, engine.unit).main_pid
    return str(host.local_path(PurePosixPath(f"/proc/{pid}"))) if pid else ""


def keep_live(process: str) -> str:
    """Return a process that is watched further, "" for one that has ended: only a new one is news then."""
    return process if process and fingerprint((process,)) == fingerprint(()) else ""
