"""Ten thousand nodes that restart an engine by turns, on a virtual clock: requests to the API, and the time.

Each step of a node is an event: it looks, decides by ``decide_turn``, takes, confirms, restarts and returns.
Nothing sleeps, and no API is there: its state is the turns with a version of each, as resourceVersions are.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from statistics import mean
from typing import Final

from benchmarks.rows import Row
from installer.fleet.turn_rules import (
    Hold,
    Node,
    Now,
    Settings,
    Take,
    Turn,
    Wait,
    confirm_turn,
    decide_turn,
    last_s,
)

NODES: Final = 10_000
PODS_S: Final = 20.0  # pods that the DaemonSet controller creates a second
TRY_S: Final = (30.0, 90.0)  # between two tries of a node
ANSWER_S: Final = 0.02
RESTART_S: Final = 5.0  # with 250 containers, and its proof
SOAK_S: Final = 30.0
DEADLINE_S: Final = 60.0  # of an engine
STOPPED_S: Final = 600.0
HOUR_S: Final = 3600.0


class Fleet:
    """The state of the API and the events of the nodes."""

    def __init__(self, at_most: int, failing: int = -1) -> None:
        self.settings = Settings("gpu", at_most=at_most)
        self.failing = failing  # the number of the restart that fails
        self.turns: dict[str, Turn] = {}
        self.versions: Counter[str] = Counter()
        self.requests: Counter[int] = Counter()  # by the second
        self.done = 0
        self.begun = 0
        self.most = 0  # nodes in a restart at the same time
        self.restarting = 0
        self.stopped_s = 0.0
        self.ended_s = 0.0
        self.chance = random.Random(1)  # noqa: S311 - the same run each time
        self.nodes = [Node(f"gpu-node-{number}", "r1", ("containerd 2",)) for number in range(NODES)]
        self._events: list[tuple[float, int, Callable[[float, int], None], int]] = []
        self._order = count()
        self._known: set[int] = set()  # nodes that have read their own object
        self._waits_for = -1  # the state of the API in which the last waiting node found no turn
        self._state = 0

    def run(self) -> None:
        """Run until all nodes are done, or for a while after the stop."""
        for number in range(NODES):
            self._at(number / PODS_S, self._look, number)
        while self._events and self.done < NODES:
            time_s, _, act, number = heapq.heappop(self._events)
            if self.stopped_s and time_s > self.stopped_s + STOPPED_S:
                break
            act(time_s, number)
            self.ended_s = time_s

    def _at(self, time_s: float, act: Callable[[float, int], None], number: int) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), act, number))

    def _ask(self, time_s: float, requests: int = 1) -> None:
        self.requests[int(time_s)] += requests

    def _write(self, turn: Turn) -> None:
        self.turns[turn.name] = turn
        self.versions[turn.name] += 1
        self._state += 1

    def _wait(self, time_s: float, number: int) -> None:
        self._at(time_s + self.chance.uniform(*TRY_S), self._look, number)

    def _look(self, time_s: float, number: int) -> None:
        self._ask(time_s)
        if number not in self._known:
            self._known.add(number)
            self._ask(time_s)  # the node's own object: its labels, and whether it is new
        if self.stopped_s:
            self._ask(time_s)  # whether the failed node is still there
        if self._state == self._waits_for:
            # Nothing has changed since another node was told to wait, and all holders are in time.
            self._wait(time_s, number)
            return
        decision = decide_turn(tuple(self.turns.values()), self.nodes[number], self.settings, Now(time_s))
        if isinstance(decision, Take):
            wanted = [(name, self.versions[name]) for name in decision.names]
            self._at(time_s + ANSWER_S, lambda later_s, node: self._take(later_s, node, wanted), number)
        else:
            assert isinstance(decision, Wait)
            self._waits_for = self._state
            self._wait(time_s, number)

    def _take(self, time_s: float, number: int, wanted: list[tuple[str, int]]) -> None:
        for name, version in wanted:
            self._ask(time_s)
            if self.versions[name] == version:
                lasts_s = last_s(DEADLINE_S, SOAK_S)
                self._write(Turn(name, self.nodes[number].name, time_s, lasts_s))
                self._at(time_s + ANSWER_S, self._confirm, number)
                return
        self._wait(time_s, number)

    def _confirm(self, time_s: float, number: int) -> None:
        self._ask(time_s)
        decision = confirm_turn(tuple(self.turns.values()), self.nodes[number], self.settings, Now(time_s))
        if not isinstance(decision, Hold):
            self._return(time_s, number)
            self._wait(time_s, number)
            return
        self.begun += 1
        self.restarting += 1
        self.most = max(self.most, self.restarting)
        if self.begun == self.failing:
            self._at(time_s + RESTART_S, self._fail, number)
        else:
            self._at(time_s + RESTART_S + SOAK_S, self._settle, number)

    def _fail(self, time_s: float, number: int) -> None:
        self._ask(time_s, 2)
        name = self._own(number)
        self._write(Turn(name, self.nodes[number].name, time_s, HOUR_S, error="not proven"))
        self.stopped_s = time_s

    def _settle(self, time_s: float, number: int) -> None:
        self._ask(time_s)
        self._return(time_s, number)
        self.restarting -= 1
        self.done += 1
        self._ask(time_s)  # whether its revision stands among the proven ones

    def _return(self, time_s: float, number: int) -> None:
        self._ask(time_s, 2)
        self._write(Turn(self._own(number)))

    def _own(self, number: int) -> str:
        holder = self.nodes[number].name
        return next(turn.name for turn in self.turns.values() if turn.holder == holder)


def measure() -> list[Row]:
    """Return the requests a second, and the hours to the end beside the least that is possible."""
    rows = []
    for at_most in (10, 100):
        fleet = Fleet(at_most)
        fleet.run()
        assert fleet.done == NODES
        assert fleet.most == at_most
        seconds = range(int(NODES / PODS_S), int(fleet.ended_s))
        told = f"{NODES} nodes, {at_most} at a time"
        least_h = NODES / at_most * (RESTART_S + SOAK_S) / HOUR_S
        rows.append(Row(f"{told}: hours to the end", fleet.ended_s / HOUR_S, 1.1 * least_h + 0.1, "h", "-"))
        rows.append(
            Row(
                f"{told}: requests a second, mean",
                mean(fleet.requests[each] for each in seconds),
                150,
                "/s",
                "-",
            )
        )
        rows.append(
            Row(f"{told}: requests, the busiest second", max(fleet.requests.values()), 400, "/s", "-")
        )
    stopped = Fleet(10, failing=100)
    stopped.run()
    after = range(int(stopped.stopped_s) + 60, int(stopped.stopped_s + STOPPED_S))
    assert stopped.begun < 100 + 10, "those that held a turn"
    rate = mean(stopped.requests[each] for each in after)
    rows.append(Row(f"{NODES} nodes, stopped: requests a second, mean", rate, 400, "/s", "-"))
    return rows


if __name__ == "__main__":
    for row in measure():
        print(f"{row.name}: {row.ours:.2f} {row.unit} (limit {row.limit:.2f})")
