"""A release in a cluster, without a network: an API with optimistic updates, and nodes that act step by step.

A step of a node is what happens between two answers of the API: nodes and their owner act in any order between
steps. ``World`` keeps what is true, against which the tests compare what nodes do.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from msgspec.structs import replace

from installer.fleet.turn_rules import (
    Failure,
    Forget,
    Free,
    GiveBack,
    Hold,
    Keep,
    Node,
    Now,
    Outcome,
    Settings,
    Sighting,
    Take,
    Turn,
    Wait,
    WriteError,
    add_failure,
    add_proven,
    confirm_turn,
    decide_turn,
    find_doubtful,
    see_turns,
    settle_turn,
)

LASTS_S = 300.0
SOAK_S = 30.0
BROKEN = "cannot verify that containerd serves nvidia"


class At(Enum):
    """Where a node is on its way."""

    WAITS = auto()
    HAS_DECIDED = auto()  # it is about to write a turn that it saw free
    HAS_TAKEN = auto()  # it has to look again
    RESTARTS = auto()  # its engine may be down
    IS_PROVEN = auto()  # the soak is not over
    HAS_FAILED = auto()
    IS_DONE = auto()


class Begin(NamedTuple):
    """A restart that begins: after a turn was confirmed, again with a turn of before, or of a new node."""

    node: str
    by: type[Take | Hold | Free]


@dataclass
class Member:
    """One node, with what it remembers between its steps."""

    node: Node
    at: At = At.WAITS
    sightings: tuple[Sighting, ...] = ()
    wanted: tuple[str, ...] = ()
    versions: dict[str, int] = field(default_factory=dict)
    recorded: str = ""  # the turn in its ledger
    proven_s: float = 0.0
    breaks: bool = False  # its next restart fails
    silent: bool = False  # its restart killed the engine: no pod of ours runs there
    cut_off: bool = False  # the API is away for this node


@dataclass
class World:
    """What the API holds, and the nodes."""

    members: list[Member]
    settings: Settings
    turns: dict[str, Turn] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    time_s: float = 1_795_780_800.0
    clock_s: float = 0.0  # what the API server's clock is ahead
    disowned: set[str] = field(default_factory=set)  # nodes whose turn the owner has deleted
    begun: list[Begin] = field(default_factory=list)

    def restarting(self) -> list[str]:
        """Return the nodes between the beginning of a restart and the return of their turn."""
        states = {At.RESTARTS, At.IS_PROVEN, At.HAS_FAILED}
        return [
            member.node.name
            for member in self.members
            if member.at in states
            and not member.node.is_new
            and member.node.name not in self.gone | self.disowned
        ]

    def failures(self, other_than: str) -> set[str]:
        """Return the nodes whose failure stands in the API."""
        written = {turn.holder for turn in self.turns.values() if turn.error}
        written |= {failure.node for failure in self.settings.failures}
        return written - self.gone - {other_than}

    def late(self, other_than: str) -> set[str]:
        """Return the nodes that hold a turn for longer than it lasts."""
        held = [
            turn for turn in self.turns.values() if turn.holder and self.time_s - turn.taken_s > turn.lasts_s
        ]
        return {turn.holder for turn in held} - self.gone - {other_than}

    def step(self, member: Member) -> None:
        """Let a node do what it does next."""
        if member.node.name in self.gone or member.silent or member.cut_off:
            return
        match member.at:
            case At.WAITS:
                self._decide(member)
            case At.HAS_DECIDED:
                self._take(member)
            case At.HAS_TAKEN:
                self._confirm(member)
            case At.RESTARTS:
                self._finish(member)
            case At.IS_PROVEN | At.HAS_FAILED:
                self._settle(member)
            case At.IS_DONE:
                pass

    def crash(self, member: Member) -> None:
        """Kill a pod: the next one knows what the ledger records, and forgets sightings."""
        member.sightings = ()
        if member.at in {At.HAS_DECIDED, At.HAS_TAKEN}:
            member.at = At.WAITS

    def mend(self, member: Member) -> None:
        """Let an owner repair a node, whose pod then begins anew."""
        member.breaks = False
        member.silent = False
        if member.at in {At.HAS_FAILED, At.RESTARTS}:
            member.at = At.WAITS

    def delete_turn(self, name: str) -> None:
        """Let the owner delete a Lease, in use or not."""
        turn = self.turns.pop(name, None)
        self.versions.pop(name, None)
        if turn is not None and turn.holder:
            self.disowned.add(turn.holder)

    def _now(self, member: Member) -> Now:
        moment = Now(self.time_s + self.clock_s, member.sightings)
        doubtful = find_doubtful(tuple(self.turns.values()), self.settings, moment)
        return replace(moment, gone=frozenset(self.gone.intersection(doubtful)))

    def _decide(self, member: Member) -> None:
        now = self._now(member)
        turns = tuple(self.turns.values())
        decision = decide_turn(turns, member.node, self.settings, now)
        member.sightings = see_turns(turns, now)
        match decision:
            case Take(names):
                member.wanted = names
                member.versions = dict(self.versions)
                member.at = At.HAS_DECIDED
            case Hold(name):
                member.recorded = name
                self._begin(member, Hold)
            case Free():
                self._begin(member, Free)
            case Wait():
                pass

    def _take(self, member: Member) -> None:
        """Take the first wanted turn whose version is what it was, as an update with a resourceVersion does."""
        member.at = At.WAITS
        for name in member.wanted:
            if self.versions.get(name) == member.versions.get(name):
                self._write(Turn(name, member.node.name, self.time_s + self.clock_s, LASTS_S))
                member.recorded = name
                member.at = At.HAS_TAKEN
                self.disowned.discard(member.node.name)
                return

    def _confirm(self, member: Member) -> None:
        decision = confirm_turn(tuple(self.turns.values()), member.node, self.settings, self._now(member))
        if isinstance(decision, Hold):
            self._begin(member, Take)
        else:
            self._return(member)
            member.at = At.WAITS

    def _begin(self, member: Member, by: type[Take | Hold | Free]) -> None:
        member.at = At.RESTARTS
        self.begun.append(Begin(member.node.name, by))

    def _finish(self, member: Member) -> None:
        member.at = At.HAS_FAILED if member.breaks else At.IS_PROVEN
        member.proven_s = self.time_s

    def _settle(self, member: Member) -> None:
        failed = member.at is At.HAS_FAILED
        if not member.recorded:
            self._settle_new(member, failed=failed)
            return
        outcome = Outcome(error=BROKEN) if failed else Outcome(self.time_s - member.proven_s)
        turns = tuple(self.turns.values())
        settlement = settle_turn(turns, member.recorded, member.node, outcome, SOAK_S)
        match settlement:
            case WriteError(error):
                self._write(replace(self.turns[member.recorded], error=error))
            case GiveBack():
                self._return(member)
                member.at = At.IS_DONE
            case Forget():
                member.recorded = ""
            case Keep():
                pass

    def _settle_new(self, member: Member, *, failed: bool) -> None:
        """Write what became of a restart without a turn, or with a turn that the owner has deleted.

        After a deletion the owner wants the others to go on: only a new node writes a failure.
        """
        if failed and member.node.is_new:
            self.settings = add_failure(self.settings, Failure(member.node.name, BROKEN))
        elif not failed:
            self.settings = add_proven(self.settings, member.node)
            member.at = At.IS_DONE

    def _return(self, member: Member) -> None:
        turn = self.turns.get(member.recorded)
        if turn is not None and turn.holder == member.node.name:
            self._write(Turn(turn.name))
        member.recorded = ""

    def _write(self, turn: Turn) -> None:
        self.turns[turn.name] = turn
        self.versions[turn.name] = self.versions.get(turn.name, 0) + 1
