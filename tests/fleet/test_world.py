"""What holds for any number of nodes in any order: never more than N, none after the stop, no deadlock."""

import random
from collections.abc import Callable
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from installer.fleet.turn_rules import Free, Hold, Node, Settings, Take, Turn
from tests.fleet.world import At, Begin, Member, World

NODES = 6
HOUR_S = 3600.0


def world(at_most: int = 2, stop_after: int = 1) -> World:
    members = []
    for number in range(NODES):
        node = Node(f"n{number}", "r1", ("containerd 2",), is_new=number == NODES - 1)
        members.append(Member(node))
    return World(members, Settings("gpu", at_most=at_most, stop_after=stop_after))


def step(world: World, number: int) -> None:
    world.step(world.members[number % NODES])


def crash(world: World, number: int) -> None:
    world.crash(world.members[number % NODES])


def break_node(world: World, _: int) -> None:
    for member in world.members:
        member.breaks |= member.at is At.RESTARTS


def silence(world: World, _: int) -> None:
    """Let our restart kill an engine."""
    for member in world.members:
        member.silent |= member.at is At.RESTARTS


def mend(world: World, number: int) -> None:
    world.mend(world.members[number % NODES])


def cut_off(world: World, number: int) -> None:
    member = world.members[number % NODES]
    member.cut_off = not member.cut_off


def delete_node_seldom(world: World, number: int) -> None:
    if number < 2:
        world.gone.add(world.members[number].node.name)


def pause(world: World, number: int) -> None:
    world.settings = replace(world.settings, paused=number % 4 == 0)


def pass_time(world: World, number: int) -> None:
    world.time_s += (1, 20, 60, 130, 400, 700)[number % NODES]


def set_clock(world: World, number: int) -> None:
    """Let another API server answer from now on, or correct the clock of one."""
    world.clock_s = (0, -HOUR_S, HOUR_S, -90, 90, 1e6)[number % NODES]


def change_limit(world: World, number: int) -> None:
    world.settings = replace(world.settings, at_most=1 + number % 4)


def delete_turn(world: World, number: int) -> None:
    world.delete_turn(f"gpu-turn-{number % 4}")


Act = tuple[Callable[[World, int], None], int]
# What happens to nodes and clocks; an owner who changes the limit or deletes Leases comes on top of it.
HAPPENS = (crash, break_node, silence, mend, cut_off, pause, pass_time, pass_time, delete_node_seldom)
CLOCKS = (*HAPPENS, set_clock)
STEPS = (step,) * 15  # a restart takes five of them


def acts(*kinds: Callable[[World, int], None]) -> st.SearchStrategy[list[Act]]:
    each = st.tuples(st.sampled_from((*STEPS, *kinds)), st.integers(0, 23))
    return st.lists(each, min_size=60, max_size=200)


LIMITS = st.integers(1, 4)


@given(acts(*CLOCKS), LIMITS, LIMITS)
def test_never_more_than_n_nodes_are_in_a_restart_whatever_clocks_say(
    happened: list[Act], at_most: int, stop_after: int
) -> None:
    cluster = world(at_most, stop_after)
    for act, number in happened:
        act(cluster, number)

        assert len(cluster.restarting()) <= at_most
        # Two who race never hold one Lease: each recorded turn has its own node.
        recorded = [
            each.recorded for each in cluster.members if each.recorded and each.node.name not in cluster.gone
        ]
        assert len(recorded) == len(set(recorded))


@given(acts(*CLOCKS, change_limit, delete_turn), LIMITS, LIMITS)
def test_nobody_begins_after_the_stop_while_paused_or_above_the_limit(
    happened: list[Act], at_most: int, stop_after: int
) -> None:
    cluster = world(at_most, stop_after)
    for act, number in happened:
        before = len(cluster.begun)
        held = {turn.holder for turn in cluster.turns.values() if turn.holder} - cluster.gone
        act(cluster, number)

        for begin in cluster.begun[before:]:
            if begin.by is Hold:
                # Its restart may have begun before, and it must be able to return its turn.
                assert begin.node in held
                continue
            assert len(cluster.failures(begin.node)) < stop_after
            assert not cluster.settings.paused
            assert begin.by is Free or len(held) <= cluster.settings.at_most


@given(acts(*HAPPENS, change_limit, delete_turn), LIMITS, LIMITS)
def test_nobody_begins_while_holders_are_silent_for_too_long(
    happened: list[Act], at_most: int, stop_after: int
) -> None:
    cluster = world(at_most, stop_after)
    for act, number in happened:
        before = len(cluster.begun)
        act(cluster, number)

        for begin in cluster.begun[before:]:
            bad = cluster.failures(begin.node) | cluster.late(begin.node)
            assert begin.by is Hold or len(bad) < stop_after or not cluster.late(begin.node)


@settings(max_examples=60)
@given(acts(*CLOCKS, change_limit, delete_turn), LIMITS, st.randoms(use_true_random=False))
def test_when_all_is_mended_every_node_finishes(
    happened: list[Act], at_most: int, chance: random.Random
) -> None:
    cluster = world(at_most)
    for act, number in happened:
        act(cluster, number)
    cluster.settings = replace(cluster.settings, paused=False)
    cluster.clock_s = 0
    for member in cluster.members:
        member.cut_off = False
        cluster.mend(member)

    for round_ in count():
        living = [each for each in cluster.members if each.node.name not in cluster.gone]
        if all(member.at is At.IS_DONE for member in living):
            break
        assert round_ < 100, [(member.node.name, member.at) for member in living]
        chance.shuffle(living)
        for member in living:
            cluster.step(member)
        cluster.time_s += 45


def test_a_stopped_fleet_goes_on_when_the_failed_node_is_mended() -> None:
    cluster = world(at_most=1)
    first = cluster.members[0]
    first.breaks = True
    for _ in range(5):
        cluster.step(first)
    assert cluster.turns["gpu-turn-0"].error
    for member in cluster.members[1:]:
        for _ in range(3):
            cluster.step(member)
    assert cluster.begun == [Begin("n0", Take)]

    cluster.mend(first)
    cluster.step(first)
    cluster.step(first)
    cluster.time_s += 31
    cluster.step(first)
    assert first.at is At.IS_DONE
    assert cluster.turns["gpu-turn-0"] == Turn("gpu-turn-0")
    for _ in range(3):
        cluster.step(cluster.members[1])
    assert cluster.begun == [Begin("n0", Take), Begin("n0", Hold), Begin("n1", Take)]
