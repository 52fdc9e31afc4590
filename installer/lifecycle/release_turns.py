"""The turns of a release: taken before a plan restarts an engine, given back after the proof.

``fleet/turn_rules.py`` decides. Here are the facts for its decisions, and the acts that follow from them. A
request for a turn is in the ledger before the API is asked: the next start or check settles the turn.
"""

import random
from collections.abc import Callable
from hashlib import sha256
from time import monotonic
from typing import Any, Final, assert_never

from msgspec.structs import astuple, replace

from installer.change.ledger import Ledger
from installer.change.plan import Plan
from installer.config_text import value_at
from installer.errors import InstallerError
from installer.fleet import client
from installer.fleet.client import NoSettingsError, Seen
from installer.fleet.own_pod import find_own_node
from installer.fleet.turn_rules import (
    SEEN_AGAIN_S,
    TRY_S,
    Cause,
    Decision,
    Failure,
    Forget,
    Free,
    GiveBack,
    Keep,
    Node,
    Now,
    Outcome,
    Proven,
    Settings,
    Sighting,
    Take,
    Wait,
    WriteError,
    add_failure,
    add_proven,
    confirm_turn,
    decide_turn,
    drop_failure,
    find_own,
    last_s,
    matches,
    pick_doubtful,
    see_turns,
    settle_turn,
)
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.host.kubernetes import STARTUP_TAINTS, Api
from installer.host.own_version import identify_build
from installer.lifecycle.last_check import read_check_of_boot
from installer.lifecycle.node_turns import NodeTurns, TurnWaitError, is_begun
from installer.lifecycle.readiness import stamp
from installer.model.engine import EngineState
from installer.model.facts import Record, TurnRow
from installer.model.files import ROOT
from installer.model.options import Options, TurnOptions
from installer.model.steps import WriteConfig

LONGEST_TRY_S: Final = 90.0  # between two tries; the shortest is TRY_S
AT_STOP_S: Final = 3.0  # for an answer of the API while a pod ends
BY_ITSELF: Final = "wait: run asks again every minute, and goes on by itself"


def find_restarts(plan: Plan, record: Record) -> tuple[str, ...]:
    """Return the engines for whose restart by a plan a turn is needed.

    A change that was begun is finished without a turn. So is the restart of an engine that is down: no
    container can lose anything.
    """
    if is_begun(record):
        return ()
    names = [*plan.reloaded]
    for step in plan.steps:
        if isinstance(step, WriteConfig) and step.engine in plan.engines:
            engine = plan.engines[step.engine]
            if engine.kind.restarts_itself:
                names.append(step.engine)
    return tuple(name for name in dict.fromkeys(names) if not _is_down(plan.engines[name]))


def _is_down(engine: EngineState) -> bool:
    """Tell whether an engine serves nothing. An engine that only does not answer may be busy."""
    return engine.serving is None and (engine.stopped or engine.failed or engine.crashing)


def find_revision(options: Options, payload: str) -> str:
    """Return what all nodes of a release install: program, payload, and options without values of a node."""
    shared = replace(options.for_engines, host_root=ROOT, mounts=())
    words = repr((identify_build(), payload, shared))
    return sha256(words.encode()).hexdigest()[:16]


class ReleaseTurns(NodeTurns):
    """The turns of one node while one child of ``run`` is at work."""

    def __init__(self, host: Host, options: Options, ledger: Ledger, api: Api | None = None) -> None:
        super().__init__(ledger, read_check_of_boot(host, options.state_file).turn)
        self._options = options
        self._given_api = api
        self._served: Node | None = None  # what this check has found to be served

    @property
    def _settings(self) -> TurnOptions:
        return self._options.turns

    @property
    def _api(self) -> Api:
        """The API of this pod's cluster; InstallerError outside a pod."""
        return self._given_api or Api.of_this_pod()

    def admit(self, plan: Plan, replan: Callable[[], Plan], *, asked: bool = False) -> Plan:
        """Return a plan that may be carried out now, see ``NodeTurns.admit``."""
        engines = find_restarts(plan, self.ledger.record)
        if not engines:
            self._end_wait()
            return plan
        if self.state.cause and monotonic() < self.state.next_try_s and not asked:
            # Changes of the node begin a try sooner: the API is asked no more often for that.
            waits = Wait(Cause[self.state.cause], self.state.reason, self.state.remedy)
            raise self._explain(plan, engines, waits)

        node = self._describe_node(plan, engines)
        try:
            with internal_errors():
                node = replace(node, name=find_own_node(self._api, node.name))
                seen, node = self._look(node)
                former = self._find_former_turn(seen, node)
                if former and self.soaks:
                    decision: Decision = Wait(Cause.BUSY, "its last restart is in its soak")
                else:
                    seen, decision = self._decide(seen, node, former)
        except InstallerError as error:
            decision = Wait(Cause.AWAY, error.problem, error.remedy)
        if isinstance(decision, Wait):
            raise self._wait(plan, engines, decision)

        self._record(node)
        if isinstance(decision, Take):
            self._take(plan, engines, seen, decision, node)
        own = find_own(seen.turns, node)
        mends = own is not None and bool(own.error)
        admitted = self._plan_anew(replan, node, confirms=not (mends or isinstance(decision, Free)))
        self._end_wait()
        self.state = replace(self.state, proven="")
        return admitted

    @property
    def soaks(self) -> bool:
        """Whether the restart of the recorded turn was proven, and its soak is not over."""
        return self.is_proven and monotonic() - self.state.proven_s < self._settings.soak_s

    def _decide(self, seen: Seen, node: Node, former: str) -> tuple[Seen, Decision]:
        """Decide whether this node may restart; return also the turns on which the decision stands.

        A ``former`` turn is given back first: pause, canary and limits count for the change at hand.
        """
        if former:
            client.give_back(self._api, former, node)
            self.forget()
            log.info("turn given back", lease=former, reason="it was taken for another change")
        gone = self._find_gone(seen, node)
        if former or gone:  # turns have changed
            seen = client.look(self._api, self._settings.release)
        now = self._now(seen, gone)
        sightings = tuple(map(astuple, see_turns(seen.turns, now)))
        self.state = replace(self.state, sightings=sightings)
        return seen, decide_turn(seen.turns, node, seen.settings, now)

    def _find_former_turn(self, seen: Seen, node: Node) -> str:
        """Find a turn of this node that was not asked for the change at hand; "" if there is none.

        Such a turn is of a restart that is proven, of another revision, or of an install that was removed.
        The turn of a failed node is none: its next change is to mend the node.
        """
        own = find_own(seen.turns, node)
        if own is None or own.error:
            return ""
        row = self.ledger.record.turn
        if row is None or self.is_proven:
            return own.name
        is_asked_for = row.release == self._settings.release and row.revision == node.revision
        return "" if is_asked_for else own.name

    def _end_wait(self) -> None:
        # The taint is looked for anew before the next restart.
        self.state = replace(self.state, cause="", reason="", remedy="", told="", next_try_s=0.0, is_new=None)

    def _describe_node(self, plan: Plan, engines: tuple[str, ...]) -> Node:
        payload = ""
        if plan.final is not None and plan.final.toolkit is not None:
            payload = plan.final.toolkit.version
        names = []
        for name in engines:
            version = plan.engines[name].version or ()
            names.append(" ".join((name, *map(str, version[:1]))))
        revision = find_revision(self._options, payload)
        return Node(self._options.node_name, revision, tuple(names), is_new=bool(self.state.is_new))

    def _look(self, node: Node) -> tuple[Seen, Node]:
        """Return all turns, and the node with what the API tells of it, as far as that counts."""
        api = self._api
        seen = self._look_at_turns(api)
        proven = all(Proven(node.revision, engine) in seen.settings.proven for engine in node.engines)
        needs_labels = bool(seen.settings.canary) and not proven
        if self.state.is_new is None or needs_labels:
            found = client.read_node(api, node.name)
            is_new = _has_startup_taint(found)
            self.state = replace(self.state, is_new=is_new)
            labels = value_at(found, ("metadata", "labels"))
            node = replace(node, labels=labels if isinstance(labels, dict) else {}, is_new=is_new)
        return seen, node

    def _look_at_turns(self, api: Api) -> Seen:
        """Return all turns; make the Lease of the settings from the options if it is missing."""
        settings = self._settings
        try:
            return client.look(api, settings.release)
        except NoSettingsError:
            if not settings.at_most:
                raise
        first = Settings(
            settings.release,
            at_most=settings.at_most,
            stop_after=settings.stop_after or 1,
            canary=settings.canary,
        )
        client.create_settings(api, first)
        return client.look(api, settings.release)

    def _now(self, seen: Seen, gone: frozenset[str] = frozenset()) -> Now:
        sightings = tuple(Sighting(*each) for each in self.state.sightings)
        return Now(seen.server_s, sightings, gone)

    def _find_gone(self, seen: Seen, node: Node) -> frozenset[str]:
        """Ask for one node that may be gone, and free the turn of a node that is."""
        doubtful = pick_doubtful(seen.turns, node, seen.settings, self._now(seen))
        if not doubtful or doubtful == node.name or not client.is_gone(self._api, doubtful):
            return frozenset()
        client.free_gone(self._api, seen, doubtful)
        log.info("turn freed", node=doubtful, reason="the cluster has no such node any more")
        return frozenset({doubtful})

    def _record(self, node: Node) -> None:
        """Write into the ledger that this node asks for a turn, or restarts without a turn."""
        row = TurnRow(
            release=self._settings.release,
            node=node.name,
            revision=node.revision,
            engines=node.engines,
            asked=f"{stamp()} {monotonic():.3f}",
            is_new=node.is_new,
        )
        self.ledger.write(replace(self.ledger.record, turn=row))

    def _take(self, plan: Plan, engines: tuple[str, ...], seen: Seen, decision: Take, node: Node) -> None:
        """Take a turn in competition with other nodes."""
        deadline_s = 0.0
        for name in engines:
            deadline_s += max(self._options.timeout_s, plan.engines[name].kind.start_s)
        lasts_s = last_s(deadline_s, self._settings.soak_s)
        try:
            with internal_errors():
                taken = client.take(self._api, seen, decision.names, node, lasts_s)
        except InstallerError as error:
            # The API may have given the turn without an answer: the ledger has the turn, the next try looks.
            raise self._wait(plan, engines, Wait(Cause.AWAY, error.problem, error.remedy)) from error
        if not taken:
            self.forget()
            raise self._wait(plan, engines, Wait(Cause.BUSY, "other nodes were faster"))
        log.info("turn taken", lease=taken, engines=[*engines])

    def _plan_anew(self, replan: Callable[[], Plan], node: Node, *, confirms: bool) -> Plan:
        """Return a new plan, for which the turn is confirmed; without a restart it is given back.

        Args:
            replan: plans anew.
            node: this node.
            confirms: the turn counts only if a look at this moment allows the restart.
        """
        try:
            plan = replan()
            engines = find_restarts(plan, self.ledger.record)
            if engines and confirms:
                self._confirm(plan, engines, node)
        except InstallerError:
            self.give_back()
            raise
        if not engines:
            self.give_back()
            # The plan has the ledger as it was with the turn.
            return _without_turn(plan, self.ledger.record.turn)
        return plan

    def _confirm(self, plan: Plan, engines: tuple[str, ...], node: Node) -> None:
        """Look once more, after the turn was taken: the owner or another node may have stopped all."""
        try:
            with internal_errors():
                seen = client.look(self._api, self._settings.release)
                confirmed = confirm_turn(seen.turns, node, seen.settings, self._now(seen))
        except InstallerError as error:
            confirmed = Wait(Cause.AWAY, error.problem, error.remedy)
        if isinstance(confirmed, Wait):
            raise self._wait(plan, engines, confirmed)

    def note_proof(self, plan: Plan) -> None:
        """Note that the engines serve: after the restart of a turn, or a revision without a restart."""
        # The plan leaves an engine of the ledger alone that the options do not name any more.
        names = tuple(row.name for row in self.ledger.record.engines if row.name in plan.engines)
        self._served = self._describe_node(plan, names)
        row = self.ledger.record.turn
        if row is not None:
            if self.state.proven != row.asked:
                self.state = replace(self.state, proven=row.asked, proven_s=monotonic())
            return
        served = " ".join((self._served.revision, *self._served.engines))
        if self.state.served != served:
            self.state = replace(self.state, served=served, served_s=monotonic(), served_told=False)

    def settle(self, failure: str = "") -> float:
        """Settle the turn in the ledger, see ``NodeTurns.settle``."""
        row = self.ledger.record.turn
        if row is None and self._served is not None and not failure:
            return self._settle_served(self._served)
        if row is None or row.release != self._settings.release:
            return super().settle(failure)
        outcome = Outcome(error=failure)
        if not failure and self.is_proven:
            outcome = Outcome(monotonic() - self.state.proven_s)
            if row.is_new:
                outcome = Outcome(self._settings.soak_s)
            left_s = self._settings.soak_s - (outcome.proven_for_s or 0.0)
            if left_s > 0:
                return left_s
        try:
            with internal_errors():
                return self._settle(row, outcome)
        except InstallerError as error:
            log.warning("turn not settled", code=error.code, problem=error.problem, remedy=error.remedy)
            return SEEN_AGAIN_S / 2

    def _settle(self, row: TurnRow, outcome: Outcome) -> float:
        api = self._api
        seen = client.look(api, row.release)
        node = Node(row.node, row.revision, row.engines, is_new=row.is_new)
        if row.is_new:
            self._settle_new(api, seen, node, outcome)
            return 0.0
        own = find_own(seen.turns, node)
        lease = own.name if own is not None else ""
        match settle_turn(seen.turns, lease, node, outcome, self._settings.soak_s):
            case GiveBack():
                self._tell_proven(api, seen, node)
                client.give_back(api, lease, node)
                self.forget()
                log.info("turn given back", lease=lease)
            case WriteError(error):
                client.write_error(api, lease, node, error)
                log.warning("turn kept", lease=lease, reason=error)
            case Keep(again_s):
                return again_s
            case Forget():
                log.info(
                    "turn forgotten", release=row.release, reason="another has taken it, or its Lease is gone"
                )
                self.forget()
            case other:
                assert_never(other)
        return 0.0

    def _settle_served(self, node: Node) -> float:
        """Tell the other nodes, after the soak, that a canary serves a revision not proven yet.

        An update often restarts nothing. Without a canary's word a new node would wait for ever.
        """
        if self.state.served_told or not node.engines:
            return 0.0
        left_s = self._settings.soak_s - (monotonic() - self.state.served_s)
        if left_s > 0:
            return left_s
        try:
            with internal_errors():
                self._tell_served(self._api, node)
        except InstallerError as error:
            log.warning("canary not told", code=error.code, problem=error.problem, remedy=error.remedy)
            return random.uniform(TRY_S, LONGEST_TRY_S)  # noqa: S311 - no secret
        self.state = replace(self.state, served_told=True)
        return 0.0

    def _tell_served(self, api: Api, node: Node) -> None:
        release = self._settings.release
        settings = client.read_settings(api, release)
        if not settings.canary or add_proven(settings, node) == settings:
            return
        found = client.read_node(api, find_own_node(api, node.name))
        labels = value_at(found, ("metadata", "labels"))
        if not matches(settings.canary, labels if isinstance(labels, dict) else {}):
            return
        client.change_settings(api, release, lambda settings: add_proven(settings, node))
        log.info("canary proven", revision=node.revision, engines=[*node.engines])

    def _settle_new(self, api: Api, seen: Seen, node: Node, outcome: Outcome) -> None:
        """Tell the other nodes of a restart without a turn."""
        if outcome.error:
            failure = Failure(node.name, outcome.error)
            if failure not in seen.settings.failures:
                client.change_settings(
                    api, seen.settings.release, lambda settings: add_failure(settings, failure)
                )
        elif outcome.proven_for_s is not None:
            self._tell_proven(api, seen, node)
            self.forget()

    def _tell_proven(self, api: Api, seen: Seen, node: Node) -> None:
        """Write that this node has not failed, and that its revision is proven if the node serves it."""

        def change(settings: Settings) -> Settings:
            # A node that went back to a former image has not proven the revision that failed.
            if self._served is not None and self._served.revision != node.revision:
                return drop_failure(settings, node.name)
            return add_proven(settings, node)

        if change(seen.settings) != seen.settings:
            client.change_settings(api, seen.settings.release, change)

    def give_back(self, row: TurnRow | None = None, *, at_stop: bool = False) -> None:
        """Give the turn back at once, see ``NodeTurns.give_back``."""
        is_undone = row is not None
        row = row or self.ledger.record.turn
        if row is None:
            return
        node = Node(row.node, row.revision, row.engines)
        try:
            with internal_errors():
                api = self._api
                if at_stop:
                    api = replace(api, answer_s=AT_STOP_S)
                own = find_own(client.look(api, row.release).turns, node)
                if own is not None and own.error and not (is_undone or self.is_proven):
                    return  # only a proof ends a failure
                if own is not None:
                    client.give_back(api, own.name, node)
                    log.info("turn given back", lease=own.name)
                if not is_undone:
                    self.forget()
        except InstallerError as error:
            # The next start or check settles the turn; after an undo there is none.
            remedy = error.remedy
            if is_undone:
                remedy = f"delete the Lease {row.release}-turn-N that {row.node} holds"
            log.warning("turn not given back", code=error.code, problem=error.problem, remedy=remedy)

    def _wait(self, plan: Plan, engines: tuple[str, ...], wait: Wait) -> TurnWaitError:
        """Return the error of a node that waits, and note when it tries again."""
        # By chance, so that nodes that began together do not ask together.
        next_try_s = monotonic() + random.uniform(TRY_S, LONGEST_TRY_S)  # noqa: S311 - no secret
        told = wait.reason
        if wait.cause is Cause.BUSY:  # the holders of turns change all the time
            told = wait.cause.name
        self.state = replace(
            self.state,
            cause=wait.cause.name,
            reason=wait.reason,
            remedy=wait.remedy,
            told=told,
            next_try_s=next_try_s,
        )
        return self._explain(plan, engines, wait)

    def _explain(self, plan: Plan, engines: tuple[str, ...], wait: Wait) -> TurnWaitError:
        titles = " and ".join(plan.engines[name].title for name in engines)
        problem = f"restart {titles} yet (waiting for a turn: {wait.reason})"
        return TurnWaitError(
            problem,
            self._find_remedy(wait),
            code="turns-stopped" if wait.cause is Cause.STOPPED else None,
            told=self.state.told,
            next_try_s=self.state.next_try_s,
        )

    def _find_remedy(self, wait: Wait) -> str:
        release = self._settings.release
        match wait.cause:
            case Cause.STOPPED:
                return (
                    f"mend these nodes, or delete their Leases {release}-turn-N: run goes on by itself then"
                )
            case Cause.PAUSED:
                lease = f"kubectl annotate lease {release}-turns node-toolkit-installer/paused-"
                return f"run {lease}: run goes on by itself then"
            case Cause.CANARY:
                return (
                    "see the pods of the canaries, and delete one that still has a former image: run goes on "
                    "by itself after the first proof"
                )
            case Cause.AWAY:
                return f"{wait.remedy}; run asks again every minute"
            case Cause.LATE | Cause.BUSY:
                return BY_ITSELF
            case other:
                assert_never(other)


def _has_startup_taint(node: dict[str, Any]) -> bool:
    taints = value_at(node, ("spec", "taints"))
    if not isinstance(taints, list):
        return False
    return any(value_at(taint, ("key",)) in STARTUP_TAINTS for taint in taints)


def _without_turn(plan: Plan, turn: TurnRow | None) -> Plan:
    """Return a plan whose ledger has the turn as it is now."""
    final = replace(plan.final, turn=turn) if plan.final is not None else None
    return replace(plan, in_progress=replace(plan.in_progress, turn=turn), final=final)
