"""Turns: whether a node may restart an engine now, waits, or needs no turn. Decides only.

Each time here is the API server's: nodes' clocks are not used. A clock that is wrong makes nodes wait longer;
it never gives a turn.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Final, TypeAlias
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from installer.model.facts import list_some

SEEN_AGAIN_S: Final = 120.0  # a late holder counts as failed when it was seen late twice, this long apart
ANSWERS_S: Final = 120.0  # the time lost to a slow API before a holder counts as late
RACES: Final = 3  # turns that a node tries to take at one try: each lost race is a request
TRY_S: Final = 30.0  # the shortest time between two tries of a node
TOLD: Final = 3  # failures that a waiting node tells of, each with its error
REVISIONS: Final = 10  # proven revisions that are remembered: a rollback to one of them waits for no canary


class Turn(Struct, frozen=True):
    """The right of a node to restart an engine, kept in a Lease; without ``holder`` the turn is free."""

    name: str
    holder: str = ""
    taken_s: float = 0.0
    lasts_s: float = 0.0  # after this time a holder that has not returned its turn is late
    error: str = ""  # the failure that the holder wrote


class Failure(Struct, frozen=True):
    """The failure of a new node, written into the settings after a restart without a turn."""

    node: str
    error: str


class Proven(Struct, frozen=True):
    """A revision proven by a node with an engine, for example ``containerd 2``."""

    revision: str
    engine: str


class Settings(Struct, frozen=True):
    """The owner's settings for all nodes of a release, and the nodes' messages to each other."""

    release: str
    at_most: int = 1  # nodes that restart an engine at the same time
    stop_after: int = 1  # failed nodes after which no node takes a turn
    canary: str = ""  # a label selector: these nodes go first
    paused: bool = False
    proven: tuple[Proven, ...] = ()  # the newest last
    failures: tuple[Failure, ...] = ()

    @property
    def lease(self) -> str:
        """The name of the Lease with these settings."""
        return name_settings(self.release)


class Node(Struct, frozen=True):
    """The asking node, and the engines to restart."""

    name: str
    revision: str
    engines: tuple[str, ...]  # each with its major version
    labels: Mapping[str, str] = {}
    is_new: bool = False  # carries the startup taint: no pod of a user runs there yet


class Sighting(Struct, frozen=True):
    """When this node first saw a held turn, and first saw the turn late."""

    turn: str
    holder: str
    taken_s: float
    first_s: float
    late_s: float | None = None


class Now(Struct, frozen=True):
    """The server's time, this node's earlier sightings, and the nodes unknown to the API."""

    server_s: float
    sightings: tuple[Sighting, ...] = ()
    gone: frozenset[str] = frozenset()


class Cause(Enum):
    """The cause of a wait, for metrics and alerts."""

    AWAY = auto()
    PAUSED = auto()
    STOPPED = auto()
    LATE = auto()  # a holder is late and was seen so once
    CANARY = auto()
    BUSY = auto()  # all turns are held


class Take(Struct, frozen=True):
    """Take the first free turn of these, in competition with other nodes; then ``confirm_turn``."""

    names: tuple[str, ...]


class Hold(Struct, frozen=True):
    """This node holds the turn already. The deadline stays: a pod in a crash loop becomes late."""

    name: str


class Wait(Struct, frozen=True):
    """Restart nothing, and ask again later.

    Attributes:
        cause: Why, for metrics and alerts.
        reason: The same in words.
        remedy: What the owner can do, where the cause alone does not tell.
    """

    cause: Cause
    reason: str
    remedy: str = ""


class Free(Struct, frozen=True):
    """This node needs no turn."""


Decision: TypeAlias = Take | Hold | Wait | Free


def decide_turn(leases: Sequence[Turn], node: Node, settings: Settings, now: Now) -> Decision:
    """Decide whether a node may carry out its plan to restart an engine.

    ``leases`` and ``settings`` come from a single answer of the API. A holder goes on whatever happens to
    others: the restart may have begun, and a failed but mended node must be able to return the turn.
    """
    own = find_own(leases, node)
    if own is not None:
        return Hold(own.name)
    stop = _find_stop(leases, node, settings, now)
    if stop is not None:
        return stop
    unproven = _find_unproven(node, settings)
    if unproven and not matches(settings.canary, node.labels):
        engines = ", ".join(unproven)
        reason = f"no canary ({settings.canary}) of this revision is proven yet with {engines}"
        return Wait(Cause.CANARY, reason)
    if node.is_new:
        return Free()
    names = _find_free(leases, node, settings, now)
    if not names:
        holders = sorted(turn.holder for turn in _held(leases, now))
        return Wait(Cause.BUSY, f"{settings.at_most} at a time; now: {list_some(holders)}")
    return Take(names)


def confirm_turn(leases: Sequence[Turn], node: Node, settings: Settings, now: Now) -> Hold | Wait:
    """Decide, from an answer newer than the taking, whether the restart may begin.

    After Wait the node returns the turn. Since the answer for ``decide_turn`` the owner may have lowered the
    limit, or another node may have failed.
    """
    own = find_own(leases, node)
    if own is None:
        return Wait(Cause.BUSY, "the turn was taken away")
    stop = _find_stop(leases, node, settings, now)
    if stop is not None:
        return stop
    held = _held(leases, now)
    if len(held) > settings.at_most:
        return Wait(Cause.BUSY, f"{settings.at_most} at a time; {len(held)} hold a turn")
    return Hold(own.name)


def find_own(leases: Iterable[Turn], node: Node) -> Turn | None:
    """Return the turn of a node."""
    return next((turn for turn in leases if turn.holder == node.name), None)


def see_turns(leases: Iterable[Turn], now: Now) -> tuple[Sighting, ...]:
    """Return the sightings for the next call of ``decide_turn``: no more than held turns.

    A late holder stays late until the turn is returned: the next answer may come from an API server with
    another clock. The holder's age also counts from the first sighting, for a clock may be set back.
    """
    before = {(seen.turn, seen.holder, seen.taken_s): seen for seen in now.sightings}
    sightings = []
    for turn in leases:
        if not turn.holder:
            continue
        old = before.get((turn.name, turn.holder, turn.taken_s))
        first_s = now.server_s
        late_s = None
        if old is not None:
            first_s = min(first_s, old.first_s)
            late_s = old.late_s
        age_s = now.server_s - min(first_s, turn.taken_s)
        if late_s is not None:
            late_s = min(late_s, now.server_s)
        elif age_s > turn.lasts_s:
            late_s = now.server_s
        sightings.append(Sighting(turn.name, turn.holder, turn.taken_s, first_s, late_s))
    return tuple(sightings)


def find_doubtful(leases: Iterable[Turn], settings: Settings, now: Now) -> tuple[str, ...]:
    """Return the blocking nodes of uncertain existence, for a question to the API."""
    late = {seen.turn for seen in see_turns(leases, now) if seen.late_s is not None}
    nodes = set()
    for turn in leases:
        if turn.holder and (turn.error or turn.name in late):
            nodes.add(turn.holder)
    nodes.update(failure.node for failure in settings.failures)
    return tuple(sorted(nodes))


def pick_doubtful(leases: Iterable[Turn], node: Node, settings: Settings, now: Now) -> str:
    """Pick the doubtful node for this node's question at this try, "" without a doubtful node.

    A node asks for no more than one: ten thousand nodes wait, and after an outage of the API all holders are
    late. Others ask for another node; the finder of a node's absence returns the node's turn.
    """
    doubtful = find_doubtful(leases, settings, now)
    if not doubtful:
        return ""
    number = crc32(node.name.encode()) + int(now.server_s // TRY_S)
    return doubtful[number % len(doubtful)]


def find_failures(leases: Sequence[Turn], settings: Settings, now: Now) -> tuple[Failure, ...]:
    """Return the failed nodes: nodes with a written error, or seen late twice."""
    late = {seen.turn: seen.late_s for seen in see_turns(leases, now)}
    failures = {}
    for turn in _held(leases, now):
        late_s = late[turn.name]
        if turn.error:
            failures[turn.holder] = turn.error
        elif late_s is not None and now.server_s - late_s >= SEEN_AGAIN_S:
            failures[turn.holder] = f"has not answered for its turn {turn.name} in time"
    for failure in settings.failures:
        if failure.node not in now.gone:
            failures.setdefault(failure.node, failure.error)
    return tuple(Failure(node, error) for node, error in sorted(failures.items()))


def _find_stop(leases: Sequence[Turn], node: Node, settings: Settings, now: Now) -> Wait | None:
    """Explain why no node may begin. A node's own failure does not keep the node from being mended."""
    if settings.paused:
        return Wait(Cause.PAUSED, f"paused in the Lease {settings.lease}")
    failures = [each for each in find_failures(leases, settings, now) if each.node != node.name]
    if len(failures) >= settings.stop_after:
        told = [f"{failure.node}: {failure.error}" for failure in failures[:TOLD]]
        if len(failures) > TOLD:
            told.append(f"and {len(failures) - TOLD} more")
        return Wait(Cause.STOPPED, f"stopped ({'; '.join(told)})")
    failed = {failure.node for failure in failures}
    held = {turn.name for turn in _held(leases, now)}
    late = []
    for seen in see_turns(leases, now):
        is_late = seen.late_s is not None and seen.turn in held
        if is_late and seen.holder != node.name and seen.holder not in failed:
            late.append(seen.holder)
    # A restart in a doubtful moment cannot be undone; a wait of two minutes costs nothing.
    if late and len(failures) + len(late) >= settings.stop_after:
        return Wait(Cause.LATE, f"late with a turn: {list_some(sorted(late))}")
    return None


def _find_unproven(node: Node, settings: Settings) -> list[str]:
    """Return a node's engines without a canary's proof of the revision."""
    if not settings.canary:
        return []
    return [engine for engine in node.engines if Proven(node.revision, engine) not in settings.proven]


def _held(leases: Iterable[Turn], now: Now) -> list[Turn]:
    """Return the turns of existing nodes."""
    return [turn for turn in leases if turn.holder and turn.holder not in now.gone]


def _find_free(leases: Sequence[Turn], node: Node, settings: Settings, now: Now) -> tuple[str, ...]:
    """List the turns that a node may take.

    After the owner has lowered the limit, turns above the limit may still be held. Each of them blocks the
    highest name below the limit: nodes that take at the same moment never exceed the limit.
    """
    held = {turn.name for turn in _held(leases, now)}
    names = [name_turn(settings.release, number) for number in range(settings.at_most)]
    above = held.difference(names)
    allowed = names[: max(0, settings.at_most - len(above))]
    free = [name for name in allowed if name not in held]
    if not free:
        return ()
    # Nodes that ask at the same moment begin with different names.
    start = crc32(node.name.encode()) % len(free)
    return tuple((free[start:] + free[:start])[:RACES])


class Outcome(Struct, frozen=True):
    """The outcome of a restart: the seconds since the proof, None without a proof, or the error."""

    proven_for_s: float | None = None
    error: str = ""


class GiveBack(Struct, frozen=True):
    """Return the turn."""


class WriteError(Struct, frozen=True):
    """Write the error into the turn, and keep the turn."""

    error: str


class Keep(Struct, frozen=True):
    """Keep the turn; settle the turn again after ``again_s``."""

    again_s: float


class Forget(Struct, frozen=True):
    """The turn is this node's no longer: deleted by the owner, or held by another node. Touch nothing."""


Settlement: TypeAlias = GiveBack | WriteError | Keep | Forget


def settle_turn(leases: Sequence[Turn], name: str, node: Node, outcome: Outcome, soak_s: float) -> Settlement:
    """Choose the settlement of the turn in a node's ledger. Only a proven node returns a turn."""
    turn = next((each for each in leases if each.name == name), None)
    if turn is None or turn.holder != node.name:
        return Forget()
    if outcome.error:
        if outcome.error == turn.error:
            return Keep(again_s=SEEN_AGAIN_S)
        return WriteError(outcome.error)
    if outcome.proven_for_s is None:
        return Keep(again_s=SEEN_AGAIN_S)
    if outcome.proven_for_s < soak_s:
        return Keep(again_s=soak_s - outcome.proven_for_s)
    return GiveBack()


def add_proven(settings: Settings, node: Node) -> Settings:
    """Return the settings with a node's proofs, and without the node's failure."""
    new = tuple(Proven(node.revision, engine) for engine in node.engines)
    proven = [each for each in settings.proven if each not in new]
    proven.extend(new)
    newest: dict[str, None] = {}
    for each in reversed(proven):
        newest.setdefault(each.revision)
    kept = list(newest)[:REVISIONS]
    remembered = tuple(each for each in proven if each.revision in kept)
    return drop_failure(replace(settings, proven=remembered), node.name)


def add_failure(settings: Settings, failure: Failure) -> Settings:
    """Return the settings with the failure of a new node without a turn."""
    others = drop_failure(settings, failure.node).failures
    return replace(settings, failures=(*others, failure))


def drop_failure(settings: Settings, node: str) -> Settings:
    """Return the settings without the failure of a mended or removed node."""
    others = tuple(failure for failure in settings.failures if failure.node != node)
    return replace(settings, failures=others)


def last_s(engine_deadline_s: float, soak_s: float) -> float:
    """Return how long a turn lasts: a restart, the restart of a roll-back, the soak, and slow answers."""
    return 2 * engine_deadline_s + soak_s + ANSWERS_S


def name_turn(release: str, number: int) -> str:
    """Return the name of a turn's Lease. Names of two releases differ: they end in the same words."""
    return f"{release}-turn-{number}"


def name_settings(release: str) -> str:
    """Return the name of the Lease with the settings."""
    return f"{release}-turns"


def split_selector(selector: str) -> Iterator[tuple[str, str, str]]:
    """Yield the key, operator and value of each part of a label selector.

    Raises:
        ValueError: the text is no label selector.
    """
    for part in selector.split(","):
        text = part.strip()
        operator = next((each for each in ("!=", "==", "=") if each in text), "")
        key = text
        value = ""
        if operator:
            key, _, value = text.partition(operator)
        elif text.startswith("!"):
            key = text.removeprefix("!")
            operator = "!"
        if not key.strip() or any(letter in key for letter in "!=() "):
            raise ValueError(f"{part.strip()!r} is no part of a label selector")
        yield key.strip(), operator, value.strip()


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Tell whether labels match a selector of ``key=value``, ``key!=value``, ``key`` and ``!key``."""
    for key, operator, value in split_selector(selector):
        if operator == "!":
            fits = key not in labels
        elif operator == "!=":
            fits = labels.get(key) != value
        elif operator:
            fits = labels.get(key) == value
        else:
            fits = key in labels
        if not fits:
            return False
    return True
