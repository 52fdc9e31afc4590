"""One check of the node, and the file that it leaves for ``status``."""

import os
import socket
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.cdi.plan import STALE
from installer.change.ledger import Ledger
from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.errors import InstallerError, NotYetError
from installer.host.events import log
from installer.host.files import Host
from installer.lifecycle import check, engine_checks, readiness, watched_places
from installer.lifecycle.drift import UNMADE_S
from installer.lifecycle.last_check import EngineCheck, LastCheck, Problem, read_check
from installer.lifecycle.node_turns import open_turns
from installer.metrics import snapshot as metrics
from installer.model.effective import EffectiveConfig, Runtime, RuntimeEntry
from installer.model.engine import EngineState
from installer.model.facts import CdiRow, ConfigRow, DeviceNode, EngineRow, Record, ToolkitRow
from installer.model.options import Drift, Options, Places
from installer.model.steps import Part, PartId, Reload, WriteConfig, for_reason
from installer.watch import DIRECTORY, FILE_SYSTEM, METRICS, NAMES, PATH, SIDECARS, Watch
from installer.watch import fingerprint as signature
from tests.support.files import put
from tests.support.live import SOCKET as CONTAINERD
from tests.support.tree import tree

TEXTFILE = PurePosixPath("/prom/toolkit.prom")
READY, PIDFILE = PurePosixPath("/ready"), PurePosixPath("/toolkit.pid")


def test_a_state_file_that_is_damaged_or_of_another_version_is_none(tmp_path: Path) -> None:
    for text in ("", '{"version": 1}', '{"version": 2, "later": 1}', "[" * 100_000):
        host = put(tmp_path, {"state": text})

        assert read_check(host, PurePosixPath("/state")) is None


@pytest.mark.parametrize(
    "text", ["", "{}", '{"pid": 1}', "[" * 100_000, '["boot_id", "pid", "plan", "engines", "time"]', None]
)
def test_what_somebody_else_calls_ready_stays_as_it_is(tmp_path: Path, text: str | None) -> None:
    host, place = Host.under(PurePosixPath(tmp_path)), tmp_path / "ready"
    place.symlink_to("elsewhere") if text is None else place.write_text(text)
    before = tree(tmp_path)

    with pytest.raises(InstallerError, match="publish readiness in /ready"):
        readiness.refuse_foreign(host, READY)
    readiness.remove(host, READY)

    assert not readiness.is_ready(host, READY, PIDFILE)
    assert tree(tmp_path) == before


UNMADE = InstallerError("generate it", remedy="wake the GPU", code="cdi-failed")
STEP = WriteConfig("docker", PurePosixPath("/etc/docker/daemon.json"), None, None)
DIFFERS = Plan((Part("docker", ((STEP, "somebody has changed it"),)),), Record(), Record(), {})
NOTHING = Plan((), Record(), Record(), {})  # is as installed
SOMETHING = Record(nodes=(DeviceNode(PurePosixPath("/dev/nvidiactl"), "1"),))
OF_DOCKER = EngineRow("docker", PurePosixPath("/var/run/docker.sock"), "docker.service", {})
OF_CONTAINERD = Record(engines=(EngineRow("containerd", CONTAINERD, "containerd.service", {}),))


class Node:
    """A node below a directory whose plan is given, and which remembers what was carried out."""

    def __init__(self, root: Path, plan: Plan, *, record: Record | None = None) -> None:
        self.host, self.plan, self.done = Host.under(PurePosixPath(root)), plan, list[str]()
        where = PurePosixPath(root)
        self.options = Options(host_root=where, driver_root="/driver", metrics_textfile=TEXTFILE)
        for name in ("driver", "run/nvidia/toolkit", "prom"):
            (root / name).mkdir(parents=True)
        self.ledger = Ledger.open(self.host, self.options.layout)
        self.ledger.write(replace(record or SOMETHING, published=(TEXTFILE,), finished=True))
        self.path = root / str(self.options.state_file)[1:]

    def work(self, drift: Drift = Drift.AUTO) -> check.Work:
        options = replace(self.options, drift=drift)
        turns = open_turns(self.host, options, self.ledger)
        return check.Work(self.host, options, self.ledger, lambda: self.plan, self._carry_out, turns)

    def check(self, drift: Drift = Drift.AUTO, *, asked: bool = False, **work: Any) -> Watch:
        return check.check_node(replace(self.work(drift), **work), asked=asked)

    def _carry_out(self, plan: Plan) -> None:
        last = read_check(self.host, self.options.state_file) or LastCheck()
        known = f"known before: {[*last.pace.repairs]} {[*last.repair.under_way]}"
        self.done.append(f"did {len(plan.steps)}, {known}")

    @property
    def ready(self) -> bool:
        return self.host.exists(self.options.ready_file)

    @property
    def counts(self) -> tuple[int, Any]:
        counts = metrics.read_counts(self.host, self.options.layout)
        return counts.repairs, counts.failures

    @property
    def last_check(self) -> LastCheck:
        last = read_check(self.host, self.options.state_file)
        assert last is not None
        return last

    @property
    def problem(self) -> Problem:
        problem = self.last_check.problem
        assert problem is not None
        return problem


NO_SPACE = InstallerError("write it", remedy="make room", code="no-space")
NO_ENGINE = InstallerError("find a running engine", remedy="start one", code="engine-not-found")
STOPPED = InstallerError("ask docker", remedy="start it", code="engine-not-answering")
NOT_YET = NotYetError("restart containerd yet (abc)", remedy="wait")


def fail(error: Exception) -> Callable[..., Any]:
    """Return a part of a check that goes wrong."""

    def failing(*_: object) -> None:
        raise error

    return failing


def test_a_repair_is_on_the_disk_before_its_first_step_for_a_kill_counts_too(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS)

    node.check()

    path = "/etc/docker/daemon.json"
    assert node.done == [f"did 1, known before: ['{path}'] ['create {path}']"]
    assert node.ready


def test_a_node_that_goes_down_is_left_as_it_is(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS)
    put(tmp_path, {"proc/1/comm": "systemd-shutdow\n"})

    node.check()

    assert (node.done, node.ready) == ([], False)
    assert "it is going down" in node.problem.text


def test_a_repair_that_fails_is_told_counted_and_tried_again_later(tmp_path: Path) -> None:
    """And it does not wait for what it has written itself."""
    node = Node(tmp_path, DIFFERS)

    def rolled_back(_: Plan) -> None:
        put(tmp_path, {node.options.layout.ledger: "{}"})
        raise NO_SPACE

    watch = node.check(carry_out=rolled_back)

    assert (node.problem.text, node.problem.code) == ("write it", "no-space")
    assert list(node.last_check.pace.repairs) == ["/etc/docker/daemon.json"]
    assert not node.ready
    assert 0 < watch.due_s <= 2
    assert watch.baseline == signature(watch.places)


RUNTIME = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")


def _plan_with_a_reload(**handlers: Runtime) -> Plan:
    """Return a plan to reload a Docker that serves these."""
    serving = EffectiveConfig(handlers, "runc")
    engine = replace(EngineState.usual(ENGINES["docker"]), files=(STEP.path,), serving=serving)
    step = Reload(ENGINES["docker"], (RuntimeEntry("nvidia", RUNTIME),))
    part = Part("docker", ((step, "its config changes"),))
    return Plan((part,), Record(), Record(), {"docker": engine})


def test_drift_that_is_ignored_counts_as_soon_as_an_engine_does_not_serve_any_more(tmp_path: Path) -> None:
    node = Node(tmp_path, _plan_with_a_reload(nvidia=Runtime(str(RUNTIME))))

    watch = node.check(Drift.IGNORE)

    assert (node.ready, node.counts, node.last_check.problem) == (True, (0, {}), None)
    assert 0 < watch.due_s <= check.IGNORED_S, "what it serves it gives up with its next reload, in no file"
    node.plan = _plan_with_a_reload(runc=Runtime("runc"))
    node.check(Drift.IGNORE)
    assert (node.ready, node.counts) == (False, (0, {"drifted": 1}))
    assert "--drift ignore repairs nothing" in node.problem.text
    assert "toolkit-installer reconcile" in node.problem.remedy


@pytest.mark.parametrize(
    ("drift", "work"),
    [(Drift.AUTO, {}), (Drift.IGNORE, {}), (Drift.AUTO, {"plan": fail(NO_ENGINE)})],
    ids=["others run", "drift is ignored", "none runs"],
)
def test_an_engine_of_ours_that_does_not_run_is_named_and_no_reason_to_be_ready(
    tmp_path: Path, drift: Drift, work: dict[str, Any]
) -> None:
    node = Node(tmp_path, NOTHING, record=OF_CONTAINERD)

    watch = node.check(drift, **work)

    assert not node.ready
    assert "containerd serves our runtimes (it does not run: nothing answers" in node.problem.text
    assert 0 < watch.due_s <= 2


def test_an_engine_that_answers_and_could_start_no_container_is_no_reason_to_be_ready(tmp_path: Path) -> None:
    serving = _plan_with_a_reload(nvidia=Runtime(str(RUNTIME))).engines
    node = Node(tmp_path, replace(NOTHING, engines=serving))
    place = tmp_path / "run/containerd/containerd.sock"
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(place))

    node.check()

    assert not node.ready
    assert "its containerd does not run: nothing answers on" in node.problem.text


def test_a_restart_that_is_pending_is_told_and_looked_for_again_soon(tmp_path: Path) -> None:
    due = frozenset({"containerd"})
    plan = replace(
        NOTHING, unverified_engines=("containerd",), pending={"containerd": NOT_YET}, restarts_due=due
    )
    node = Node(tmp_path, plan)

    watches = [check.conclude_install(node.work(), plan), node.check(Drift.REPORT)]

    assert (node.problem.text, node.problem.code) == (NOT_YET.problem, "restart-pending")
    assert (node.last_check.pace.failures, node.last_check.pace.repairs) == (0, {})
    node.plan = DIFFERS  # it is found busy right before its restart
    watches.append(node.check(carry_out=fail(NOT_YET)))
    assert (node.problem.text, node.last_check.pace.failures) == (NOT_YET.problem, 0)
    assert (node.counts, node.ready) == ((0, {}), False), "and no failure"
    assert all(0 < watch.due_s <= check.PENDING_S for watch in watches)


PENDING = InstallerError(
    "restart containerd (its next start takes away kata)",
    remedy="restart it at a time of your choice, then run again",
    code="pending-by-others",
)


def waits(node: Node, reason: str = "", error: InstallerError = PENDING) -> Watch:
    """Let an install be refused."""
    before = check.take_fingerprint(node.work())
    return check.publish_wait(node.work(), error, before, reason)


def socket_of(root: Path) -> tuple[str, str]:
    put(root, {"socket": ""})
    return (PATH, f"{root}/socket")


def test_an_install_that_waits_for_the_owner_says_that_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, NOTHING)
    events = list[str]()
    monkeypatch.setattr(log, "write", lambda _, event, __: events.append(event))
    PENDING.watched = (socket_of(tmp_path),)

    first, second, third = waits(node), waits(node, "check"), waits(node, "asked")

    assert (node.problem.code, node.ready) == ("pending-by-others", False)
    assert node.counts == (0, {PENDING.code: 1})
    assert node.problem.remedy == "restart it at a time of your choice; run goes on by itself then"
    assert events.count("waiting for the owner") == 2, "at first, and for who asks"
    assert first.baseline == check.CHECK_AGAIN, "it is not known how the socket was before"
    assert second.baseline == third.baseline == signature(second.places)
    assert socket_of(tmp_path) in second.places
    assert [each.due_s for each in (first, second, third)] == [0.0] * 3, "at the usual time"
    assert second.sidecars == METRICS
    told = (tmp_path / "prom/toolkit.prom").read_text()
    assert 'toolkit_installer_waiting{code="pending-by-others"} 1.0' in told
    concluded = check.conclude_install(node.work(), NOTHING)
    assert (node.last_check.problem, node.last_check.awaited) == (None, ())
    assert (node.ready, concluded.sidecars) == (True, SIDECARS)


def test_an_install_that_waits_does_so_too_while_its_owner_restarts_the_engine(tmp_path: Path) -> None:
    node = Node(tmp_path, NOTHING)
    PENDING.watched = (socket_of(tmp_path),)
    waits(node)

    answer = waits(node, "check", NO_ENGINE)

    assert (node.problem.code, node.ready) == ("engine-not-found", False)
    assert 0 < answer.due_s <= 2
    assert socket_of(tmp_path) in answer.places


@pytest.mark.parametrize("serves", [True, False])
def test_a_node_is_ready_while_it_waits_if_its_engines_serve_what_the_ledger_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, serves: bool
) -> None:
    node = Node(tmp_path, NOTHING, record=OF_CONTAINERD)
    serving = EffectiveConfig({}, "runc") if serves else None
    monkeypatch.setattr(engine_checks, "ask", lambda _, engine: replace(engine, serving=serving))

    answer = node.check(plan=fail(PENDING))

    (engine,) = node.last_check.engines
    assert (node.problem.code, node.ready, engine.serves) == ("pending-by-others", serves, serves)
    assert any(path.endswith(str(node.options.ready_file)) for _, path in answer.places) is serves


def test_an_engine_that_takes_devices_by_cdi_is_seen_when_it_comes_back(tmp_path: Path) -> None:
    node = Node(tmp_path, NOTHING, record=Record(cdi=CdiRow(("docker",))))
    node.options = replace(node.options, places={"docker": Places(socket=PurePosixPath("/run/mine.sock"))})

    watch = node.check(plan=fail(STOPPED))
    before = signature(watch.places)
    (tmp_path / "run/mine.sock").touch()

    assert before == watch.baseline
    assert signature(watch.places) != watch.baseline


def test_checks_on_request_do_not_delay_the_regular_checks(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS)

    due = [node.check(plan=fail(STOPPED), asked=True).due_s for _ in range(5)]
    later = [node.check(plan=fail(STOPPED)).due_s for _ in range(3)]

    assert all(0 < each <= 2 for each in due), due
    assert [round(each, -1) for each in later] == [10, 60, 60], "only what nobody asks for does"


def test_what_somebody_mounts_over_the_toolkit_can_be_unmounted_while_run_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, DIFFERS, record=Record(toolkit=ToolkitRow("1" * 16, None, "")))
    version = f"{tmp_path}{node.options.layout.version('1' * 16)}"
    monkeypatch.setattr(watched_places, "is_mount_point", lambda local: str(local) == version)

    watch = node.check(plan=fail(STOPPED))

    assert (NAMES, f"{version}/") in watch.places


def test_nvidia_ctk_is_asked_again_where_it_has_failed_with_a_loaded_driver(tmp_path: Path) -> None:
    node = Node(tmp_path, NOTHING)
    made = node.check()
    node.plan = replace(NOTHING, specification_problem=UNMADE)

    assert (made.due_s, node.check().due_s) == (0.0, UNMADE_S)


@pytest.mark.parametrize("drift", [Drift.REPORT, Drift.IGNORE, Drift.AUTO])
def test_a_stale_specification_is_replaced_whatever_becomes_of_drift(tmp_path: Path, drift: Drift) -> None:
    path = PurePosixPath("/var/run/cdi/nvidia.com-gpu.json")
    stale = Part(PartId.GPUS, ((WriteConfig("cdi", path, None, None), STALE),), Record(cdi=CdiRow(())))
    drifted = replace(DIFFERS.parts[0], planned=for_reason("changed", (STEP, Reload(ENGINES["docker"], ()))))
    node = Node(tmp_path, replace(DIFFERS, parts=(drifted, stale)))

    watch = node.check(drift)

    assert node.done[0].startswith("did 1,"), "the rest is left, and told"
    if drift is Drift.IGNORE:
        assert node.last_check.problem is None
    else:
        assert node.problem.code == "drifted"
    assert watch.baseline == check.CHECK_AGAIN, "which is looked at once more"


def test_run_watches_the_configs_sockets_and_files_of_the_ledger(tmp_path: Path) -> None:
    host, layout = Host.under(PurePosixPath(tmp_path)), Options().layout
    row = ConfigRow("docker", STEP.path, None, None, (), ())
    held = Record(engines=(OF_DOCKER,), configs=(row,), toolkit=ToolkitRow("1", None, ""))

    def places(record: Record, runtime: str = "", *engines: str) -> set[tuple[str, str]]:
        last = LastCheck(low_level_runtime=runtime, engines=tuple(map(EngineCheck, engines)))
        listed = watched_places.list_places(host, Options(), record, last)
        return {(kind, path.replace(str(tmp_path), "")) for kind, path in listed}

    ours = {(PATH, str(STEP.path)), (DIRECTORY, str(layout.version("1"))), (PATH, str(OF_DOCKER.socket))}
    ours.add((DIRECTORY, str(layout.backups)))
    always = {(PATH, str(path)) for path in (layout.toolkit, layout.config, layout.ledger)}
    directories = {(DIRECTORY, "/etc/docker"), (DIRECTORY, "/etc/docker/conf.d")}
    assert places(held) >= ours | always | directories
    assert places(Record()).isdisjoint(ours)
    assert places(held, "/usr/bin/runc") - places(held) == {(PATH, "/usr/bin/runc")}
    assert (FILE_SYSTEM, "/var/lib/docker") in places(held, "", "docker")


def test_a_process_is_that_of_the_engine_and_one_that_has_ended_is_not_watched(tmp_path: Path) -> None:
    engine = replace(EngineState.usual(ENGINES["docker"]), pid=7)
    host, mine = Host.under(PurePosixPath(tmp_path)), f"/proc/{os.getpid()}"

    assert [watched_places.process_of(host, each) for each in (engine, replace(engine, pid=None))] == [
        "/proc/7",
        "",
    ]
    assert [watched_places.keep_live(each) for each in (mine, f"/proc/{(1 << 22) + 1}", "")] == [mine, "", ""]
