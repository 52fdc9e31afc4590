"""Turns on a node: what a check asks the API for, what stands in the ledger meanwhile, and how it is settled."""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import Any, Literal, NamedTuple

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger, read_record
from installer.change.plan import Plan
from installer.cli import flags, nvidia, nvidia_flags
from installer.engines import ENGINES, dry_run
from installer.engines.dependencies import Dependencies
from installer.errors import InstallerError, NotYetError, UsageError
from installer.fleet import client, leases
from installer.fleet.turn_rules import TRY_S, Failure, Node, Proven
from installer.host.events import log
from installer.host.files import Host
from installer.host.kubernetes import STARTUP_TAINTS, Api, Reply
from installer.host.own_version import identify_build
from installer.lifecycle import check, engine_checks, handover, readiness, release_turns, uninstall
from installer.lifecycle.last_check import LastCheck, read_check
from installer.lifecycle.node_turns import open_turns
from installer.lifecycle.release_turns import LONGEST_TRY_S, ReleaseTurns
from installer.metrics import snapshot as metrics
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState
from installer.model.facts import EngineRow, Record, ToolkitRow, TurnRow
from installer.model.options import Drift, OnExit, Options, TurnOptions
from installer.model.steps import Part, Reload, for_reason
from installer.supervisor import HANDED_OVER
from installer.watch import Watch
from tests.fleet.api_server import ApiServer, serving, settings_lease
from tests.support.live import SOCKET

ONE = "gpu-turn-0"
TEXTFILE = PurePosixPath("/prom/toolkit.prom")
BROKEN = InstallerError(
    "verify that containerd serves nvidia", remedy="see its log", code="engine-not-proven"
)
CONTAINERD = replace(
    EngineState.usual(ENGINES["containerd"]), version=(2, 1, 9), serving=EffectiveConfig({}, "runc")
)
ROW = EngineRow("containerd", SOCKET, "containerd.service", {})
INSTALLED = Record(engines=(ROW,), toolkit=ToolkitRow("v1", None, ""), finished=True, published=(TEXTFILE,))


class Killed(BaseException):
    """A SIGKILL of the child."""


class Dying(Api, frozen=True):
    """An API in front of which the child is killed, before or after its n-th request that changes something."""

    at: int = 0
    after: bool = False

    def ask(self, method: str, path: str, content: Any = None) -> Reply:
        counts = method != "GET"
        if counts:
            CHANGES.append(path)
        if counts and len(CHANGES) == self.at and not self.after:
            raise Killed
        reply = super().ask(method, path, content)
        if counts and len(CHANGES) == self.at:
            raise Killed
        return reply


CHANGES: list[str] = []


class Member:
    """A node of a release: a ledger, and an engine that has to be restarted until it was."""

    def __init__(self, root: Path, name: str, api: Api, *, soak_s: float = 0.0, **settings: Any) -> None:
        self.name = name
        self.api = api
        for place in ("driver", "run/nvidia/toolkit", "prom"):
            (root / place).mkdir(parents=True)
        self.host = Host.under(PurePosixPath(root))
        turns = TurnOptions("gpu", soak_s=soak_s, **settings)
        self.options = Options(
            host_root=PurePosixPath(root),
            driver_root="/driver",
            metrics_textfile=TEXTFILE,
            on_exit=OnExit.KEEP,
            node_name=name,
            drift=Drift.REPAIR,
            turns=turns,
        )
        with self.ledger() as ledger:
            ledger.write(INSTALLED)
        self.needs_restart = True
        self.restarts = 0
        self.begins: Callable[[], None] = lambda: None  # called before the restart
        self.refuses: InstallerError | None = None  # a new plan, once a turn was taken

    def ledger(self) -> "Held":
        return Held(self.host, self.options)

    @property
    def record(self) -> Record:
        record = read_record(self.host, self.options.layout)
        assert record is not None
        return record

    @property
    def asks(self) -> bool:
        """Whether the ledger has a turn."""
        return self.record.turn is not None

    def plan(self, ledger: Ledger) -> Plan:
        if self.refuses is not None and ledger.record.turn is not None:
            raise self.refuses
        steps = [Reload(ENGINES["containerd"], ())] if self.needs_restart else []
        part = Part("containerd", for_reason("its runtimes changed", steps))
        return Plan((part,), ledger.record, ledger.record, {"containerd": CONTAINERD})

    def work(self, ledger: Ledger) -> check.Work:
        def carry_out(plan: Plan) -> None:
            if plan.reloaded:
                readiness.remove(self.host, self.options.ready_file)
                self.begins()
                self.restarts += 1
                self.needs_restart = False

        turns = ReleaseTurns(self.host, self.options, ledger, self.api)
        return check.Work(self.host, self.options, ledger, lambda: self.plan(ledger), carry_out, turns)

    def check(self, *, asked: bool = True) -> Watch:
        """Do what a check of ``run`` does; one that is asked for heeds no pause between two tries."""
        with self.ledger() as ledger:
            return check.check_node(self.work(ledger), asked=asked)

    def dies(self, at: int, *, after: bool) -> None:
        """Have the child of a check killed at its n-th request that changes something."""
        CHANGES.clear()
        self.api = Dying(self.api.host, self.api.port, self.api.account, at=at, after=after)
        with pytest.raises(Killed):
            self.check()
        self.api = Api(self.api.host, self.api.port, self.api.account)

    @property
    def last(self) -> LastCheck:
        last = read_check(self.host, self.options.state_file)
        assert last is not None
        return last

    @property
    def why(self) -> str:
        return self.last.problem.text if self.last.problem else ""

    @property
    def remedy(self) -> str:
        return self.last.problem.remedy if self.last.problem else ""

    @property
    def ready(self) -> bool:
        return self.host.exists(self.options.ready_file)

    @property
    def told(self) -> str:
        file = self.host.read(TEXTFILE)
        return file.content.decode() if file else ""


class Held:
    """The ledger, held by a block; a killed block leaves it as it is."""

    def __init__(self, host: Host, options: Options) -> None:
        self._ledger = Ledger.open(host, options.layout)

    def __enter__(self) -> Ledger:
        return self._ledger

    def __exit__(self, *_: object) -> Literal[False]:
        self._ledger.lock.release()
        return False


@pytest.fixture
def server() -> ApiServer:
    server = ApiServer()
    server.put("leases", settings_lease(at_most="1", stop_after="1"))
    for name in ("a", "b"):
        server.put("nodes", {"metadata": {"name": name, "labels": {}}})
    return server


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Iterator[Api]:
    (tmp_path / "account").mkdir()
    with serving(server, tmp_path / "account") as api:
        yield api


@pytest.fixture(autouse=True)
def _serving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let containerd serve; what a check reads of engines and files is tested elsewhere."""
    monkeypatch.setattr(
        engine_checks, "ask", lambda _, engine: replace(engine, serving=EffectiveConfig({}, "runc"))
    )
    monkeypatch.setattr(check._Check, "judge_installation", lambda _: (True, True))  # noqa: SLF001
    monkeypatch.setattr(engine_checks, "find_dependencies", lambda *_: Dependencies())
    monkeypatch.setattr(engine_checks, "find_low_level", lambda *_: "")
    monkeypatch.setattr(dry_run, "find_start_failures", lambda *_: {})


@pytest.fixture
def a(api: Api, tmp_path: Path) -> Member:
    return Member(tmp_path / "a", "a", api)


@pytest.fixture
def b(api: Api, tmp_path: Path) -> Member:
    return Member(tmp_path / "b", "b", api)


def turns(api: Api) -> dict[str, str]:
    """Return the holder of each turn."""
    return {turn.name: turn.holder for turn in client.look(api, "gpu").turns}


def test_a_node_takes_a_turn_restarts_and_gives_it_back(a: Member, server: ApiServer, api: Api) -> None:
    held: list[tuple[str, TurnRow | None]] = []
    a.begins = lambda: held.append((turns(api)[ONE], a.record.turn))

    a.check()

    ((holder, row),) = held
    assert (holder, row and row.node, row and row.engines) == ("a", "a", ("containerd 2",))
    assert (a.restarts, a.ready, a.asks, turns(api)) == (1, True, False, {ONE: ""})
    assert server.calls == [
        *("list leases", "get nodes/a", f"get leases/{ONE}", "create leases", "list leases"),  # took it
        *("list leases",),  # the test's own
        *("list leases", "get leases/gpu-turns", "update leases/gpu-turns"),  # its revision is proven
        *(f"get leases/{ONE}", f"update leases/{ONE}", "list leases"),
    ]


def test_a_plan_without_a_restart_takes_no_turn_and_asks_once_for_a_canary(
    a: Member, server: ApiServer
) -> None:
    a.needs_restart = False

    for _ in range(3):
        a.check()

    assert (server.calls, a.ready) == (["get leases/gpu-turns"], True)


def test_a_node_whose_engine_is_down_needs_no_turn_and_one_that_only_is_silent_does(a: Member) -> None:
    with a.ledger() as ledger:
        plan = a.plan(ledger)
    silent = replace(CONTAINERD, serving=None)
    for engine, needs in [
        (CONTAINERD, True),
        (silent, True),
        *((replace(silent, **{why: True}), False) for why in ("stopped", "failed", "crashing")),
    ]:
        of = replace(plan, engines={"containerd": engine})
        assert bool(release_turns.find_restarts(of, INSTALLED)) is needs
    assert not release_turns.find_restarts(plan, replace(INSTALLED, finished=False)), "it was begun"
    assert release_turns.find_restarts(plan, Record()), "a first install"


def test_of_two_nodes_that_race_one_restarts_and_the_other_waits_and_stays_ready(
    a: Member, b: Member, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(log, "write", lambda _, event, __: events.append(event))
    answers: list[Watch] = []
    a.begins = lambda: answers.append(b.check(asked=False))  # while a restarts

    a.check()

    assert (a.restarts, b.restarts) == (1, 0)
    (watch,) = answers
    assert TRY_S - 1 < watch.due_s <= LONGEST_TRY_S
    assert b.why == "restart containerd yet (waiting for a turn: 1 at a time; now: a)"
    assert (b.ready, b.last.keeps_install, b.asks) == (True, True, False)
    assert 'toolkit_installer_waiting{code="waiting-for-turn"} 1.0' in b.told
    b.check(asked=False)
    assert b.restarts == 0, "its next try is not due"
    assert events.count("waiting for a turn") == 1
    b.check()
    assert (b.restarts, b.ready, turns(api)) == (1, True, {ONE: ""})


def test_a_node_that_lost_the_race_for_the_last_turn_waits(
    a: Member, b: Member, api: Api, server: ApiServer
) -> None:
    server.put("leases", leases.new_turn(ONE, "gpu"))
    lease = server.lease(ONE)
    server.meddles.append(lambda: server.put("leases", leases.taken(lease, b.name, server.server_s, 300)))

    a.check()

    assert (a.restarts, a.asks, turns(api)) == (0, False, {ONE: "b"})
    assert "other nodes were faster" in a.why


def take(api: Api, member: Member, *, lasts_s: float = 300.0, error: str = "") -> None:
    """Have another node hold the turn."""
    node = Node(member.name, "r", ())
    assert client.take(api, client.look(api, "gpu"), (ONE,), node, lasts_s) == ONE
    if error:
        client.write_error(api, ONE, node, error)


def test_a_node_that_does_not_serve_is_not_ready_while_it_waits(
    a: Member, b: Member, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(api, b)
    monkeypatch.setattr(engine_checks, "ask", lambda _, engine: replace(engine, serving=None))

    a.check()

    assert (a.restarts, a.ready) == (0, False)


def test_without_an_api_nothing_is_restarted_and_it_is_tried_for_ever(a: Member, server: ApiServer) -> None:
    server.is_busy = True
    for _ in range(3):
        a.check()
        assert (a.restarts, a.ready, a.asks) == (0, True, False)
        assert "waiting for a turn: GET /apis/coordination.k8s.io" in a.why
    server.is_busy = False

    a.check()

    assert a.restarts == 1


def test_an_api_that_does_not_answer_is_named_once_in_the_reason_of_the_wait(a: Member) -> None:
    a.api = replace(a.api, port=1)

    a.check()

    assert a.why.startswith("restart containerd yet (waiting for a turn: GET /apis/coordination.k8s.io/")
    assert a.why.count("the Kubernetes API does not answer") == 1
    assert (a.restarts, a.ready) == (0, True)


def test_a_wrong_setting_is_told_with_what_corrects_it_and_not_blamed_on_the_api(
    a: Member, server: ApiServer
) -> None:
    server.put("leases", settings_lease(at_most="many"))

    a.check()
    a.check(asked=False)  # the pause between two tries: the API is not asked again

    assert "annotation node-toolkit-installer/at-most of Lease gpu-turns" in a.why
    assert a.remedy.startswith("correct it with kubectl annotate --overwrite lease gpu-turns")
    assert (a.restarts, a.ready) == (0, True)


def test_an_api_that_goes_away_after_the_turn_was_taken_begins_nothing(
    a: Member, server: ApiServer, api: Api
) -> None:
    server.put("leases", leases.new_turn(ONE, "gpu"))
    server.meddles.append(lambda: server.refused.add(("list", "leases")))

    a.check()

    assert (a.restarts, a.ready) == (0, True)
    assert a.asks, "it may hold the turn"
    server.refused.clear()
    assert turns(api) == {ONE: "a"}
    a.check()
    assert (a.restarts, a.asks, turns(api)) == (1, False, {ONE: ""})


def test_a_failure_stops_the_others_until_the_node_is_mended(a: Member, b: Member, api: Api) -> None:
    def fail() -> None:
        raise BROKEN

    a.begins = fail
    a.check()
    assert (a.ready, a.asks) == (False, True)
    assert client.look(api, "gpu").turns[0].error == str(BROKEN)

    b.check()
    assert b.why == f"restart containerd yet (waiting for a turn: stopped (a: {BROKEN}))"
    assert b.last.problem is not None
    assert b.last.problem.code == "turns-stopped"
    assert 'toolkit_installer_waiting{code="turns-stopped"} 1.0' in b.told
    assert (b.restarts, b.ready) == (0, True)

    a.begins = lambda: None
    a.check()
    assert (a.restarts, a.asks, turns(api)) == (1, False, {ONE: ""})
    b.check()
    assert b.restarts == 1


def test_the_owner_pauses_by_an_annotation(a: Member, server: ApiServer) -> None:
    lease = settings_lease(at_most="1", stop_after="1", paused="true")
    server.put("leases", lease)
    a.check()
    assert (a.restarts, a.ready) == (0, True)
    assert "paused in the Lease gpu-turns" in a.why
    assert a.last.problem is not None
    assert "kubectl annotate lease gpu-turns node-toolkit-installer/paused-" in a.last.problem.remedy

    server.put("leases", settings_lease(at_most="1", stop_after="1"))
    a.check()
    assert a.restarts == 1


def test_a_holder_that_is_silent_stops_the_others_when_it_was_seen_late_twice(
    a: Member, b: Member, api: Api, server: ApiServer
) -> None:
    take(api, b, lasts_s=60)
    server.server_s += 90
    a.check()
    assert "waiting for a turn: late with a turn: b" in a.why
    server.server_s += 119
    a.check()
    assert "late with a turn: b" in a.why
    server.server_s += 2
    a.check()
    assert "stopped (b: has not answered for its turn gpu-turn-0 in time)" in a.why
    assert a.restarts == 0


def test_the_turn_of_a_node_that_is_gone_is_free(a: Member, b: Member, api: Api, server: ApiServer) -> None:
    take(api, b, error="broken")
    server.delete("nodes", "b")

    a.check()

    assert (a.restarts, turns(api)) == (1, {ONE: ""})


def test_the_others_wait_for_a_canary_of_the_same_revision(a: Member, b: Member, server: ApiServer) -> None:
    server.put("leases", settings_lease(at_most="1", stop_after="1", canary="pool=canary"))
    a.check()
    assert "no canary (pool=canary) of this revision is proven yet with containerd 2" in a.why

    server.put("nodes", {"metadata": {"name": "b", "labels": {"pool": "canary"}}})
    b.check()
    a.check()

    assert (b.restarts, a.restarts) == (1, 1)


def test_a_canary_that_serves_a_revision_without_a_restart_proves_it_after_the_soak(
    api: Api, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An update restarts nothing: a node added later waited for a canary's restart for ever.
    server.put("leases", settings_lease(at_most="1", stop_after="1", canary="pool=canary"))
    server.put("nodes", {"metadata": {"name": "b", "labels": {"pool": "canary"}}})
    server.put("nodes", tainted("a"))
    a = Member(tmp_path / "a", "a", api, soak_s=30.0)
    b = Member(tmp_path / "b", "b", api, soak_s=30.0)
    b.needs_restart = False

    soaks = b.check()
    a.check()
    waited = a.restarts
    monkeypatch.setattr(release_turns, "monotonic", lambda: monotonic() + 31)
    b.check()
    a.check()

    assert 25 < soaks.due_s <= 30
    assert (waited, a.restarts, b.restarts) == (0, 1, 0)


def test_a_node_whose_ledger_has_an_engine_that_the_plan_leaves_alone_still_serves(
    a: Member, server: ApiServer
) -> None:
    # Such as Docker, after --runtime was changed from docker and containerd to containerd.
    a.options = replace(a.options, engines=("containerd",))
    with a.ledger() as ledger:
        docker = EngineRow("docker", SOCKET, "docker.service", {})
        ledger.write(replace(INSTALLED, engines=(ROW, docker)))
    a.needs_restart = False

    a.check()

    assert (a.why, a.ready, server.calls) == ("", True, ["get leases/gpu-turns"])


def test_a_node_that_is_no_canary_proves_nothing_by_serving(a: Member, b: Member, server: ApiServer) -> None:
    server.put("leases", settings_lease(at_most="1", stop_after="1", canary="pool=canary"))
    b.needs_restart = False

    b.check()
    a.check()

    assert (a.restarts, b.restarts) == (0, 0)
    assert "no canary" in a.why


def test_a_canary_whose_word_is_not_heard_speaks_again(
    a: Member, b: Member, server: ApiServer, api: Api
) -> None:
    server.put("leases", settings_lease(at_most="1", stop_after="1", canary="pool=canary"))
    server.put("nodes", {"metadata": {"name": "b", "labels": {"pool": "canary"}}})
    b.needs_restart = False
    server.is_busy = True

    watch = b.check()

    assert b.ready, "serving needs no API"
    assert TRY_S <= watch.due_s <= LONGEST_TRY_S
    server.is_busy = False
    b.check()
    assert client.look(api, "gpu").settings.proven
    a.check()
    assert a.restarts == 1


@pytest.mark.parametrize("is_new", [False, True], ids=["with a turn", "a new node without a turn"])
def test_a_failed_revision_is_not_proven_when_its_node_goes_back_to_the_former_one(
    a: Member, b: Member, api: Api, server: ApiServer, *, is_new: bool
) -> None:
    # Seen: after a roll-back of the image the revision that had failed on its canary waited for no canary.
    server.put("leases", settings_lease(at_most="1", stop_after="1", canary="pool=canary"))
    canary = tainted("a") if is_new else {}
    server.put("nodes", canary | {"metadata": {"name": "a", "labels": {"pool": "canary"}}})
    former = a.options
    a.options = replace(former, set_as_default=True)
    fail(a)

    a.options = former
    a.needs_restart = False
    a.check()
    a.check()

    settings = client.look(api, "gpu").settings
    revision = release_turns.find_revision(former, "v1")
    assert settings.proven == (Proven(revision, "containerd 2"),)
    assert (settings.failures, a.asks, set(turns(api).values())) == ((), False, set() if is_new else {""})
    b.options = replace(b.options, set_as_default=True)
    b.check()
    assert (b.restarts, "no canary" in b.why) == (0, True)


def test_a_revision_is_of_program_payload_and_options_but_not_of_a_node(a: Member, b: Member) -> None:
    revision = release_turns.find_revision(a.options, "v1")

    assert release_turns.find_revision(b.options, "v1") == revision
    assert release_turns.find_revision(a.options, "v2") != revision
    assert release_turns.find_revision(replace(a.options, set_as_default=True), "v1") != revision


def test_another_build_of_the_same_version_is_another_revision(
    a: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seen: with a rebuilt image of the same number, a node that is no canary restarted beside the canary.
    revision = release_turns.find_revision(a.options, "v1")
    version, _ = identify_build()
    monkeypatch.setattr(release_turns, "identify_build", lambda: (version, "0123456789ab"))

    assert release_turns.find_revision(a.options, "v1") != revision


def tainted(name: str, key: str = STARTUP_TAINTS[0]) -> dict[str, Any]:
    taint = {"key": key, "effect": "NoSchedule"}
    return {"metadata": {"name": name, "labels": {}}, "spec": {"taints": [taint]}}


@pytest.mark.parametrize("key", STARTUP_TAINTS)
def test_a_new_node_needs_no_turn_but_its_failure_counts(
    a: Member, b: Member, api: Api, server: ApiServer, key: str
) -> None:
    def fail() -> None:
        raise BROKEN

    take(api, b)
    server.put("nodes", tainted("a", key))
    a.begins = fail
    a.check()
    assert client.look(api, "gpu").settings.failures == (Failure("a", str(BROKEN)),)

    client.give_back(api, ONE, Node("b", "r", ()))
    b.check()
    assert "stopped (a: cannot verify" in b.why

    a.begins = lambda: None
    a.check()
    assert (a.restarts, a.asks, client.look(api, "gpu").settings.failures) == (1, False, ())
    b.check()
    assert b.restarts == 1


def test_a_new_node_heeds_the_stop(a: Member, b: Member, api: Api, server: ApiServer) -> None:
    take(api, b, error="broken")
    server.put("nodes", tainted("a"))

    a.check()

    assert (a.restarts, "stopped (b: broken)" in a.why) == (0, True)


def test_a_plan_that_needs_no_restart_any_more_gives_the_turn_back_at_once(
    a: Member, api: Api, server: ApiServer
) -> None:
    server.put("leases", leases.new_turn(ONE, "gpu"))
    server.meddles.append(lambda: setattr(a, "needs_restart", False))

    a.check()

    assert (a.restarts, a.asks, turns(api), a.ready) == (0, False, {ONE: ""}, True)


@pytest.mark.parametrize(
    "error",
    [
        InstallerError(
            "restart containerd (its next start takes away kata)",
            remedy="restart it",
            code="pending-by-others",
        ),
        NotYetError("restart containerd yet (abc)", remedy="wait"),
    ],
)
def test_a_plan_that_is_refused_or_has_to_wait_gives_the_turn_back_at_once(
    a: Member, api: Api, error: InstallerError
) -> None:
    a.refuses = error

    a.check()

    assert (a.restarts, a.asks, turns(api)) == (0, False, {ONE: ""})


def test_a_turn_is_given_back_when_the_engine_has_served_for_the_soak(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Member(tmp_path / "a", "a", api, soak_s=30.0)
    watch = a.check()
    assert (a.ready, turns(api)) == (True, {ONE: "a"})
    assert 28 < watch.due_s <= 30
    assert "toolkit_installer_turn_held 1.0" in a.told

    monkeypatch.setattr(release_turns, "monotonic", lambda: monotonic() + 30)
    a.check()

    assert (a.restarts, a.asks, turns(api)) == (1, False, {ONE: ""})


def test_an_engine_that_stops_to_serve_during_the_soak_is_a_failure(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Member(tmp_path / "a", "a", api, soak_s=30.0)
    a.check()

    def refuse(_: object, **__: object) -> None:
        raise BROKEN

    monkeypatch.setattr(check._Check, "ask_engines", lambda *_, **__: refuse(None))  # noqa: SLF001
    a.check()

    assert client.look(api, "gpu").turns[0].error == str(BROKEN)


class Kill(NamedTuple):
    """When a child is killed, and who holds the turn and how often the engine was restarted by then."""

    at: int
    after: bool
    holder: str
    restarts: int


KILLS = {
    "between the ledger and the turn": Kill(1, after=False, holder="", restarts=0),
    "between the turn and the restart": Kill(1, after=True, holder="a", restarts=0),
    "between the proof and what the others learn of it": Kill(2, after=False, holder="a", restarts=1),
    "between the proof and the return": Kill(3, after=False, holder="a", restarts=1),
    "between the return and the ledger": Kill(3, after=True, holder="", restarts=1),
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=[*KILLS])
def test_a_child_that_is_killed_is_settled_by_the_next(a: Member, api: Api, kill: Kill) -> None:
    a.dies(kill.at, after=kill.after)
    assert a.asks
    assert (turns(api).get(ONE, ""), a.restarts) == (kill.holder, kill.restarts)

    a.check()

    assert (a.restarts, a.ready, a.asks, turns(api)) == (1, True, False, {ONE: ""})
    (proven,) = client.look(api, "gpu").settings.proven
    assert proven == Proven(release_turns.find_revision(a.options, "v1"), "containerd 2")


def test_a_turn_of_a_release_that_run_has_no_more_is_left(a: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(log, "write", lambda _, event, __: events.append(event))
    a.dies(1, after=True)
    with a.ledger() as ledger:
        off = open_turns(a.host, replace(a.options, turns=TurnOptions()), ledger)
        assert off.settle() == 0

    assert not a.asks
    assert any("turn forgotten" in event for event in events)


def test_a_turn_that_the_owner_has_freed_is_forgotten(a: Member, api: Api, server: ApiServer) -> None:
    a.dies(2, after=False)
    server.delete("leases", ONE)

    a.check()

    assert (a.restarts, a.asks, turns(api)) == (1, False, {})


def stop(a: Member, api: Api, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    """Let the last child of ``run`` carry out a stop, which ends with ``code``."""
    monkeypatch.setattr(Api, "of_this_pod", lambda: api)
    monkeypatch.setattr(uninstall, "node_stops", lambda _: False)
    assert uninstall.stop(a.options, 0.0) == code


def begin_only(a: Member) -> None:
    """Leave a change half done, as a kill does."""
    a.dies(1, after=True)
    with a.ledger() as ledger:
        ledger.write(replace(ledger.record, finished=False))


def fail(a: Member) -> None:
    def break_engine() -> None:
        raise BROKEN

    a.begins = break_engine
    a.check()


STOPS: dict[str, tuple[Callable[[Member], object], str]] = {
    "after the turn was taken": (lambda a: a.dies(1, after=True), ""),
    "in a change": (begin_only, "a"),
    "after a failure": (fail, "a"),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_stop_that_keeps_everything_gives_a_turn_back_unless_the_engine_is_not_proven(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    a = Member(tmp_path / "a", "a", api, soak_s=30.0)
    act, holder = STOPS[name]
    act(a)
    assert turns(api) == {ONE: "a"}

    stop(a, api, monkeypatch)

    assert turns(api) == {ONE: holder}
    assert a.asks is bool(holder), "the next start settles it"


@pytest.mark.parametrize("begins", [True, False], ids=["for a container in use", "before it begins"])
@pytest.mark.parametrize("name", STOPS)
def test_a_stop_that_hands_its_undo_over_gives_a_turn_back_unless_the_engine_is_not_proven(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, begins: bool
) -> None:
    # The host's unit has no account of the API, and the undo may wait for a container for a day.
    a = Member(tmp_path / "a", "a", api, soak_s=30.0)
    act, holder = STOPS[name]
    act(a)
    a.options = replace(a.options, on_exit=OnExit.AUTO)
    if begins:
        monkeypatch.setattr(uninstall, "undo_or_hand_over", lambda *_, **__: "our runtime runs trainer")
    else:
        monkeypatch.setattr(handover, "find_reason", lambda *_: "crio restarts when this container has ended")
        monkeypatch.setattr(handover, "hand_over", lambda *_: None)

    stop(a, api, monkeypatch, HANDED_OVER)

    assert turns(api) == {ONE: holder}
    assert a.asks is bool(holder), "the next pod on this node settles it"


def test_a_stop_in_the_soak_leaves_the_turn_and_the_soak_to_the_next_run(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seen with pods deleted right after their restart: three nodes of two at once were in their soak.
    a = Member(tmp_path / "a", "a", api, soak_s=30.0)
    a.check()

    stop(a, api, monkeypatch)
    watch = a.check()
    soaks = turns(api)
    monkeypatch.setattr(release_turns, "monotonic", lambda: monotonic() + 31)
    a.check()

    assert soaks == {ONE: "a"}
    assert 25 < watch.due_s <= 30
    assert (turns(api), a.restarts) == ({ONE: ""}, 1)


def test_a_stop_in_the_soak_that_hands_its_undo_over_gives_the_turn_back(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Member(tmp_path / "a", "a", api, soak_s=30.0)
    a.check()
    a.options = replace(a.options, on_exit=OnExit.AUTO)
    monkeypatch.setattr(uninstall, "undo_or_hand_over", lambda *_, **__: "our runtime runs trainer")

    stop(a, api, monkeypatch, HANDED_OVER)

    assert turns(api) == {ONE: ""}


def pause(server: ApiServer, **more: str) -> None:
    server.put("leases", settings_lease(at_most="1", stop_after="1", paused="yes", **more))


def test_a_turn_of_a_proven_restart_is_no_leave_for_the_next_one(
    api: Api, tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seen: a turn that could not be given back let its node restart again, during a pause.
    a = Member(tmp_path / "a", "a", api, soak_s=30.0)
    a.check()
    pause(server)
    a.needs_restart = True

    a.check()
    in_soak = (a.restarts, a.why)
    monkeypatch.setattr(release_turns, "monotonic", lambda: monotonic() + 31)
    a.check()

    assert in_soak[0] == 1
    assert "in its soak" in in_soak[1]
    assert (a.restarts, turns(api), a.asks) == (1, {ONE: ""}, False)
    assert "paused" in a.why


def test_a_turn_of_an_install_that_was_removed_is_no_leave_to_go_before_the_canary(
    a: Member, api: Api, server: ApiServer
) -> None:
    # Seen after an uninstall in the middle of a roll-out, which took the right to give turns back away first.
    take(api, a)
    server.put("leases", settings_lease(at_most="1", stop_after="1", canary="pool=canary"))

    a.check()

    assert (a.restarts, turns(api)) == (0, {ONE: ""}), "a canary can take it"
    assert "no canary" in a.why


def test_a_turn_taken_before_a_pause_by_a_killed_child_does_not_restart_in_the_pause(
    a: Member, api: Api, server: ApiServer
) -> None:
    a.dies(1, after=True)
    pause(server)

    a.check()

    assert (a.restarts, turns(api), a.asks) == (0, {ONE: ""}, False)
    assert "paused" in a.why


def test_a_turn_of_another_revision_is_no_leave_for_this_one(a: Member, api: Api, server: ApiServer) -> None:
    a.dies(1, after=True)
    assert turns(api) == {ONE: "a"}
    a.options = replace(a.options, set_as_default=True)
    pause(server)

    a.check()

    assert (a.restarts, turns(api)) == (0, {ONE: ""})


def test_a_turn_that_could_not_be_given_back_is_not_taken(a: Member, api: Api, server: ApiServer) -> None:
    # A Role names the turns of the chart's limit: an owner who raises it by annotation alone gets no further.
    server.refused.add(("get", "leases"))

    a.check()

    assert (a.restarts, turns(api)) == (0, {})
    assert "403" in a.why


def test_a_failed_node_whose_new_plan_is_refused_keeps_its_turn(a: Member, api: Api) -> None:
    fail(a)
    a.refuses = NotYetError("restart containerd yet (abc)", remedy="wait")
    a.check()

    (turn,) = client.look(api, "gpu").turns
    assert (turn.holder, turn.error, a.asks) == ("a", str(BROKEN), True)


def test_a_missing_lease_of_the_settings_is_made_from_the_flags(
    api: Api, tmp_path: Path, server: ApiServer
) -> None:
    server.delete("leases", "gpu-turns")
    plain = Member(tmp_path / "plain", "b", api)
    plain.check()
    assert (plain.restarts, "there is no Lease gpu-turns" in plain.why) == (0, True)
    assert plain.remedy == "restore it (the chart creates it); run asks again every minute"

    a = Member(tmp_path / "a", "a", api, at_most=2, stop_after=3)
    a.check()

    settings = client.look(api, "gpu").settings
    assert (a.restarts, settings.at_most, settings.stop_after) == (1, 2, 3)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="--on-exit undo"):
        Options(turns=TurnOptions("gpu"), node_name="a")
    for wrong in ({"release": "GPU"}, {"release": "gpu", "soak_s": -1}, {"at_most": 1}, {"canary": "a=b"}):
        with pytest.raises(UsageError):
            TurnOptions(**wrong)


def test_a_look_of_the_metrics_tells_of_no_turn_without_a_release(a: Member) -> None:
    with a.ledger() as ledger:
        off = replace(a.options, turns=TurnOptions())
        metrics.publish_pending(a.host, off, ledger)

    assert "\ntoolkit_installer_turn_held " not in a.told


PREFIX = "TOOLKIT_INSTALLER_"
SET = {"RELEASE": "gpu", "MAX_RESTARTING": "2", "STOP_AFTER": "3", "CANARY": "pool=canary", "SOAK": "5"}


def test_both_command_lines_take_the_same_settings() -> None:
    environment = {f"{PREFIX}{name}": value for name, value in SET.items()}
    theirs = nvidia.options_from(nvidia_flags.read([], environment | {f"{PREFIX}ON_EXIT": "auto"}))
    values = {name.lower(): value for name, value in SET.items()}
    ours = flags.options_from(flags.DEFAULTS | values | {"on_exit": "keep"}, frozenset())

    assert theirs.turns == ours.turns == TurnOptions("gpu", 2, 3, "pool=canary", 5)
    with pytest.raises(UsageError, match="--on-exit undo"):
        nvidia.options_from(nvidia_flags.read([], environment))


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_restarting", "0"), ("max_restarting", "1001"), ("stop_after", "-1"), ("canary", "a in (b)")],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_flag(field: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"--{field.replace('_', '-')}"):
        flags.make_turns(flags.DEFAULTS | {"release": "gpu", field: value})
