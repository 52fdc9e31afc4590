"""Which node may restart an engine now: each case is a state of the Leases and one node that asks."""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from installer.fleet.turn_rules import (
    RACES,
    REVISIONS,
    Cause,
    Decision,
    Failure,
    Forget,
    Free,
    GiveBack,
    Hold,
    Keep,
    Node,
    Now,
    Outcome,
    Proven,
    Settings,
    Settlement,
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
    last_s,
    matches,
    name_turn,
    pick_doubtful,
    see_turns,
    settle_turn,
    split_selector,
)

NOON = 1_795_780_800.0  # the API server's clock
LASTS = 300.0
HOUR = 3600.0

ONE = "gpu-turn-0"
TWO = "gpu-turn-1"
THREE = "gpu-turn-2"

NODE = Node("gpu-node-1", revision="r2", engines=("containerd 2",))
CANARY = replace(NODE, labels={"pool": "canary"})
NEW = replace(NODE, is_new=True)
SETTINGS = Settings("gpu")
NOW = Now(NOON)
NO_CANARY = Wait(Cause.CANARY, "no canary (pool=canary) of this revision is proven yet with containerd 2")


def free(name: str = ONE) -> Turn:
    return Turn(name)


def held(name: str, holder: str, *, for_s: float = 10.0, error: str = "") -> Turn:
    return Turn(name, holder, NOON - for_s, LASTS, error)


def late(name: str, holder: str) -> Turn:
    return held(name, holder, for_s=LASTS + 60)


def seen(turn: Turn, *, ago_s: float, late_ago_s: float | None = None) -> Sighting:
    late_s = None if late_ago_s is None else NOON - late_ago_s
    return Sighting(turn.name, turn.holder, turn.taken_s, NOON - ago_s, late_s)


def settings(**changes: object) -> Settings:
    return replace(SETTINGS, **changes)


def now(*sightings: Sighting, gone: tuple[str, ...] = (), server_s: float = NOON) -> Now:
    return Now(server_s, sightings, frozenset(gone))


def busy(holders: str, at_most: int = 1) -> Wait:
    return Wait(Cause.BUSY, f"{at_most} at a time; now: {holders}")


def stopped(told: str) -> Wait:
    return Wait(Cause.STOPPED, f"stopped ({told})")


def doubtful(nodes: str) -> Wait:
    return Wait(Cause.LATE, f"late with a turn: {nodes}")


SILENT = "has not answered for its turn gpu-turn-0 in time"
BROKEN = "cannot verify that containerd serves nvidia"
PAUSED = Wait(Cause.PAUSED, "paused in the Lease gpu-turns")


class Case(NamedTuple):
    """One state, and what it means for a node that wants to restart an engine."""

    leases: tuple[Turn, ...]
    decision: Decision
    settings: Settings = SETTINGS
    now: Now = NOW
    node: Node = NODE


CASES = {
    # Who takes which turn.
    "no turn has ever been taken": Case((), Take((ONE,))),
    "the only turn is free": Case((free(),), Take((ONE,))),
    "the only turn is held": Case((held(ONE, "a"),), busy("a")),
    "one of two turns is held": Case((held(ONE, "a"),), Take((TWO,)), settings(at_most=2)),
    "both turns are held": Case((held(ONE, "a"), held(TWO, "b")), busy("a, b", 2), settings(at_most=2)),
    "the node holds the turn already": Case((held(ONE, NODE.name),), Hold(ONE)),
    "the node holds one of two turns": Case(
        (held(ONE, "a"), held(TWO, NODE.name)), Hold(TWO), settings(at_most=2)
    ),
    "another release has its own turns": Case((free(),), Take(("dev-turn-0",)), Settings("dev")),
    # The owner changes the limit, or pauses.
    "the limit was raised": Case((held(ONE, "a"),), Take((TWO,)), settings(at_most=2)),
    "the limit was lowered to 1 while three hold": Case(
        (held(ONE, "a"), held(TWO, "b"), held(THREE, "c")), busy("a, b, c")
    ),
    "the limit was lowered to 1 and only the third turn is held": Case(
        (free(), free(TWO), held(THREE, "c")), busy("c")
    ),
    "the limit was lowered to 2 and only the third turn is held": Case(
        (free(), free(TWO), held(THREE, "c")), Take((ONE,)), settings(at_most=2)
    ),
    "paused": Case((free(),), PAUSED, settings(paused=True)),
    "paused, and the node holds a turn: it finishes": Case(
        (held(ONE, NODE.name),), Hold(ONE), settings(paused=True)
    ),
    "paused, and the node is new": Case((free(),), PAUSED, settings(paused=True), node=NEW),
    # A holder fails.
    "a holder has written its error": Case(
        (held(ONE, "a", error=BROKEN), free(TWO)), stopped(f"a: {BROKEN}"), settings(at_most=2)
    ),
    "a holder's pod crashes in a loop before it can write an error": Case(
        (late(ONE, "a"), free(TWO)),
        stopped(f"a: {SILENT}"),
        settings(at_most=2),
        now(seen(late(ONE, "a"), ago_s=400, late_ago_s=120)),
    ),
    "our restart killed the engine and the node is silent": Case(
        (late(ONE, "a"),), stopped(f"a: {SILENT}"), now=now(seen(late(ONE, "a"), ago_s=150, late_ago_s=150))
    ),
    "a silent holder is seen late for the first time": Case(
        (late(ONE, "a"), free(TWO)), doubtful("a"), settings(at_most=2)
    ),
    "a silent holder was seen late one minute ago": Case(
        (late(ONE, "a"), free(TWO)),
        doubtful("a"),
        settings(at_most=2),
        now(seen(late(ONE, "a"), ago_s=60, late_ago_s=60)),
    ),
    "the late holder was another node's earlier turn": Case(
        (held(ONE, "a"), free(TWO)),
        Take((TWO,)),
        settings(at_most=2),
        now(seen(late(ONE, "a"), ago_s=600, late_ago_s=300)),
    ),
    "one node has failed and two may fail": Case(
        (held(ONE, "a", error=BROKEN), free(TWO)), Take((TWO,)), settings(at_most=2, stop_after=2)
    ),
    "one node has failed, another is late, and two may fail": Case(
        (held(ONE, "a", error=BROKEN), late(TWO, "b"), free(THREE)),
        doubtful("b"),
        settings(at_most=3, stop_after=2),
    ),
    "two nodes have failed and two may fail": Case(
        (held(ONE, "a", error=BROKEN), held(TWO, "b", error="no space"), free(THREE)),
        stopped(f"a: {BROKEN}; b: no space"),
        settings(at_most=3, stop_after=2),
    ),
    "the failed holder asks again: its owner has mended it": Case(
        (held(ONE, NODE.name, error=BROKEN),), Hold(ONE)
    ),
    "two nodes have failed, and one of them was mended": Case(
        (held(ONE, "a", error=BROKEN), held(TWO, NODE.name, error=BROKEN)), Hold(TWO), settings(at_most=2)
    ),
    "the failed holder was mended and has returned its turn": Case((free(),), Take((ONE,))),
    "the owner deleted the failed turn": Case((), Take((ONE,))),
    "the owner deleted a turn in use: another node may take it": Case(
        (held(TWO, "b"),), Take((ONE,)), settings(at_most=2)
    ),
    # Nodes come and go.
    "the holder's node was deleted with its turn": Case(
        (late(ONE, "a"),), Take((ONE,)), now=now(gone=("a",))
    ),
    "the failed holder's node was deleted": Case(
        (held(ONE, "a", error=BROKEN),), Take((ONE,)), now=now(gone=("a",))
    ),
    "a new node needs no turn": Case((held(ONE, "a"),), Free(), node=NEW),
    "a new node heeds the stop": Case((held(ONE, "a", error=BROKEN),), stopped(f"a: {BROKEN}"), node=NEW),
    "a new node heeds the canary": Case((free(),), NO_CANARY, settings(canary="pool=canary"), node=NEW),
    "a new node has failed": Case(
        (free(),), stopped(f"b: {BROKEN}"), settings(failures=(Failure("b", BROKEN),))
    ),
    "a new node has failed and was deleted": Case(
        (free(),), Take((ONE,)), settings(failures=(Failure("b", BROKEN),)), now(gone=("b",))
    ),
    "the new node that has failed asks again": Case(
        (free(),), Free(), settings(failures=(Failure(NODE.name, BROKEN),)), node=NEW
    ),
    # Canaries.
    "a canary goes first": Case((free(),), Take((ONE,)), settings(canary="pool=canary"), node=CANARY),
    "no canary has proven this revision": Case(
        (free(),), NO_CANARY, settings(canary="pool=canary", proven=(Proven("r1", "containerd 2"),))
    ),
    "the canary selector matches no node": Case(
        (free(),),
        Wait(Cause.CANARY, "no canary (pool=canari) of this revision is proven yet with containerd 2"),
        settings(canary="pool=canari"),
    ),
    "the only canaries are dead": Case((), NO_CANARY, settings(canary="pool=canary")),
    "a canary has proven this revision with this engine": Case(
        (free(),), Take((ONE,)), settings(canary="pool=canary", proven=(Proven("r2", "containerd 2"),))
    ),
    "a canary has proven this revision with an older containerd": Case(
        (free(),), NO_CANARY, settings(canary="pool=canary", proven=(Proven("r2", "containerd 1"),))
    ),
    "a node with two engines of which one is proven": Case(
        (free(),),
        Wait(Cause.CANARY, "no canary (pool=canary) of this revision is proven yet with docker 28"),
        settings(canary="pool=canary", proven=(Proven("r2", "containerd 2"),)),
        node=replace(NODE, engines=("containerd 2", "docker 28")),
    ),
    "a rollback to a proven revision waits for no canary": Case(
        (free(),),
        Take((ONE,)),
        settings(canary="pool=canary", proven=(Proven("r1", "containerd 2"), Proven("r2", "containerd 2"))),
        node=replace(NODE, revision="r1"),
    ),
    "a canary fails": Case(
        (held(ONE, "a", error=BROKEN),), stopped(f"a: {BROKEN}"), settings(canary="pool=canary"), node=CANARY
    ),
    # Clocks.
    "the API server's clock is an hour behind the taking": Case((held(ONE, "a", for_s=-HOUR),), busy("a")),
    "the clock was set back, and the holder has been silent since": Case(
        (held(ONE, "a", for_s=-HOUR),),
        doubtful("a"),
        now=now(seen(held(ONE, "a", for_s=-HOUR), ago_s=LASTS + 1)),
    ),
    "the API server's clock is an hour ahead": Case(
        (held(ONE, "a", for_s=HOUR), free(TWO)), doubtful("a"), settings(at_most=2)
    ),
    "a server with a clock behind answers after a server that saw the holder late": Case(
        (late(ONE, "a"), free(TWO)),
        doubtful("a"),
        settings(at_most=2),
        now(seen(late(ONE, "a"), ago_s=60, late_ago_s=60), server_s=NOON - HOUR),
    ),
    "a turn whose time nobody can read is late": Case(
        (Turn(ONE, "a"), free(TWO)), doubtful("a"), settings(at_most=2)
    ),
    "the API was away for ten minutes, and so was the holder": Case(
        (held(ONE, "a", for_s=600), free(TWO)),
        doubtful("a"),
        settings(at_most=2),
        now(seen(held(ONE, "a", for_s=600), ago_s=600)),
    ),
    "the API was away for ten minutes, and the holder has returned its turn": Case(
        (free(), held(TWO, "b")),
        Take((ONE,)),
        settings(at_most=2),
        now(seen(held(ONE, "a", for_s=600), ago_s=600)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_that_wants_to_restart_an_engine(name: str) -> None:
    case = CASES[name]

    assert decide_turn(case.leases, case.node, case.settings, case.now) == case.decision


def test_a_wait_tells_the_first_few_of_many_nodes() -> None:
    many = [held(name_turn("gpu", number), f"n{number:03}") for number in range(900)]
    failed = [held(name_turn("gpu", number), f"n{number:03}", error="x" * 300) for number in range(900)]

    waits = decide_turn(many, NODE, settings(at_most=900), NOW)
    stops = decide_turn(failed, NODE, settings(at_most=900), NOW)

    assert isinstance(waits, Wait)
    assert waits.reason.endswith("n007 and 892 more")
    assert isinstance(stops, Wait)
    assert stops.reason.endswith("x; and 897 more)")
    assert len(stops.reason) < 1500


def test_nodes_that_ask_at_the_same_moment_begin_with_different_turns() -> None:
    ten = settings(at_most=10)
    decisions = [decide_turn((), replace(NODE, name=f"n{number}"), ten, NOW) for number in range(100)]

    taken = [decision for decision in decisions if isinstance(decision, Take)]
    assert len(taken) == 100
    assert {decision.names[0] for decision in taken} == {name_turn("gpu", number) for number in range(10)}
    assert {len(set(decision.names)) for decision in taken} == {RACES}


class Confirmation(NamedTuple):
    """What a node that has taken a turn reads before it begins."""

    leases: tuple[Turn, ...]
    decision: Hold | Wait
    settings: Settings = SETTINGS


OWN = held(ONE, NODE.name)
CONFIRMATIONS = {
    "nothing has changed": Confirmation((OWN,), Hold(ONE)),
    "two hold two turns": Confirmation((OWN, held(TWO, "b")), Hold(ONE), settings(at_most=2)),
    "the limit was lowered meanwhile": Confirmation(
        (OWN, held(TWO, "b")), Wait(Cause.BUSY, "1 at a time; 2 hold a turn")
    ),
    "another node has failed meanwhile": Confirmation(
        (OWN, held(TWO, "b", error=BROKEN)), stopped(f"b: {BROKEN}"), settings(at_most=2)
    ),
    "another node is late": Confirmation((OWN, late(TWO, "b")), doubtful("b"), settings(at_most=2)),
    "the owner has paused meanwhile": Confirmation((OWN,), PAUSED, settings(paused=True)),
    "the owner has deleted the turn meanwhile": Confirmation((), Wait(Cause.BUSY, "the turn was taken away")),
    "another node has the turn": Confirmation((held(ONE, "b"),), Wait(Cause.BUSY, "the turn was taken away")),
}


@pytest.mark.parametrize("name", CONFIRMATIONS)
def test_a_node_that_has_taken_a_turn(name: str) -> None:
    case = CONFIRMATIONS[name]

    assert confirm_turn(case.leases, NODE, case.settings, NOW) == case.decision


SOAK_S = 30.0
PROVEN = Outcome(proven_for_s=31)
SETTLEMENTS: dict[str, tuple[tuple[Turn, ...], Outcome, Settlement]] = {
    "proven and soaked": ((OWN,), PROVEN, GiveBack()),
    "proven a moment ago": ((OWN,), Outcome(proven_for_s=10), Keep(20)),
    "proven late, after others saw it fail": ((late(ONE, NODE.name),), PROVEN, GiveBack()),
    "mended after a failure": ((held(ONE, NODE.name, error=BROKEN),), PROVEN, GiveBack()),
    "failed": ((OWN,), Outcome(error=BROKEN), WriteError(BROKEN)),
    "failed as before": ((held(ONE, NODE.name, error=BROKEN),), Outcome(error=BROKEN), Keep(120)),
    "failed in another way": ((held(ONE, NODE.name, error="x"),), Outcome(error=BROKEN), WriteError(BROKEN)),
    "not proven yet": ((OWN,), Outcome(), Keep(120)),
    "the owner deleted the turn": ((), PROVEN, Forget()),
    "the owner deleted the turn of a failed node": ((), Outcome(error=BROKEN), Forget()),
    "another node has the turn": ((held(ONE, "b"),), PROVEN, Forget()),
    "another node has the turn, and this node failed": ((held(ONE, "b"),), Outcome(error=BROKEN), Forget()),
}


@pytest.mark.parametrize("name", SETTLEMENTS)
def test_a_turn_that_the_ledger_records(name: str) -> None:
    leases, outcome, settlement = SETTLEMENTS[name]

    assert settle_turn(leases, ONE, NODE, outcome, SOAK_S) == settlement


def test_a_failure_is_seen_in_two_answers_two_minutes_apart() -> None:
    silent = late(ONE, "a")
    two = settings(at_most=2)
    told = []
    sightings: tuple[Sighting, ...] = ()
    for after_s in (0, 60, 119, 120, 180):
        moment = Now(NOON + after_s, sightings)
        decision = decide_turn((silent, free(TWO)), NODE, two, moment)
        assert isinstance(decision, Wait)
        told.append(decision.cause)
        sightings = see_turns((silent, free(TWO)), moment)

    assert told == [Cause.LATE, Cause.LATE, Cause.LATE, Cause.STOPPED, Cause.STOPPED]
    # The holder proves itself after all and returns its turn: the stop ends at once.
    returned = (free(), free(TWO))
    assert isinstance(decide_turn(returned, NODE, two, Now(NOON + 200, sightings)), Take)
    assert see_turns(returned, Now(NOON + 200, sightings)) == ()


def test_only_doubtful_nodes_are_asked_for() -> None:
    turns = (held(ONE, "good"), late(TWO, "late"), held(THREE, "failed", error=BROKEN), free("gpu-turn-3"))

    asked = find_doubtful(turns, settings(failures=(Failure("new", BROKEN),)), NOW)

    assert asked == ("failed", "late", "new")


def test_a_node_asks_for_one_doubtful_node_at_a_try_and_for_each_in_the_end() -> None:
    turns = tuple(late(name_turn("gpu", number), f"late-{number}") for number in range(7))

    picked = {pick_doubtful(turns, NODE, SETTINGS, Now(NOON + 30 * number)) for number in range(7)}

    assert picked == {f"late-{number}" for number in range(7)}
    assert pick_doubtful((held(ONE, "good"),), NODE, SETTINGS, NOW) == ""


def test_the_last_ten_proven_revisions_are_remembered() -> None:
    known = SETTINGS
    for number in range(12):
        node = replace(NODE, revision=f"r{number}", engines=("containerd 2", "docker 28"))
        known = add_proven(known, node)

    assert [each.revision for each in known.proven[::2]] == [f"r{number}" for number in range(2, 12)]
    assert len(known.proven) == 2 * REVISIONS
    assert add_proven(known, replace(NODE, revision="r11")).proven[-1] == Proven("r11", "containerd 2")


def test_a_proven_node_takes_its_failure_away_and_no_other() -> None:
    failed = add_failure(SETTINGS, Failure(NODE.name, "first"))
    failed = add_failure(failed, Failure("b", BROKEN))
    failed = add_failure(failed, Failure(NODE.name, "second"))

    assert failed.failures == (Failure("b", BROKEN), Failure(NODE.name, "second"))
    assert add_proven(failed, NODE).failures == (Failure("b", BROKEN),)


def test_a_turn_lasts_for_a_restart_a_roll_back_the_soak_and_slow_answers() -> None:
    assert last_s(engine_deadline_s=60, soak_s=30) == 270


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ("pool=canary", True),
        ("pool==canary", True),
        ("pool!=canary", False),
        ("pool=other", False),
        ("zone", True),
        ("!zone", False),
        ("!gpu", True),
        ("gpu!=a100", True),
        ("pool=canary,zone=b", True),
        ("pool=canary, zone=c", False),
    ],
)
def test_labels_match_a_selector(selector: str, *, fits: bool) -> None:
    assert matches(selector, {"pool": "canary", "zone": "b"}) is fits


@pytest.mark.parametrize("selector", ["", "=", "a=b,", "pool in (canary)", "!", "a b"])
def test_a_selector_that_is_none_is_refused(selector: str) -> None:
    with pytest.raises(ValueError, match="is no part of a label selector"):
        tuple(split_selector(selector))
