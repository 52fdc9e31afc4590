"""A look at the node by itself, and the file that it leaves for ``status``."""

import json
import os
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer import looks
from installer.decide.effect import Effect, Handler
from installer.decide.engines.model import RuntimeEntry
from installer.decide.errors import InstallerError, NotIdleError
from installer.decide.facts import EngineFacts
from installer.decide.options import Drift, Options
from installer.decide.part import Part
from installer.decide.plan import Plan
from installer.decide.rows import CdiRow, EngineRow, Record
from installer.decide.steps import Reload, WriteConfig
from installer.host.files import Host
from installer.record import seen
from installer.record.seen import EngineSeen, Seen


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2}', '{"version": 1}', "[" * 100_000], ids=range(6)
)
def test_a_damaged_state_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").write_text(text)

    assert seen.read(Host.under(PurePosixPath(tmp_path)), PurePosixPath("/state")) is None


def test_a_state_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    host, path = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/state")
    seen.publish(host, path, Seen(problem="x", remedy="y"))
    assert seen.read(host, path) is not None

    os.chown(tmp_path / "state", 65534, -1)

    assert seen.read(host, path) is None


def test_a_state_file_survives_its_way_through_the_disk(tmp_path: Path) -> None:
    host, path = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/state")
    engine = EngineSeen("containerd", serves=False, since="then", differs="it does not", process="/proc/7")
    said = Seen(
        number=4, engines=(engine,), doing=("a",), looks=(1.5,), repairs={"x": (2.5, 3.5)}, failures=2
    )

    seen.publish(host, path, said)

    found = seen.read(host, path)
    assert found is not None
    assert found.current
    assert replace(found, boot_id="", pid=0, time="") == said


def test_since_is_kept_while_nothing_changes() -> None:
    before = (EngineSeen("a", serves=True, since="1"), EngineSeen("b", serves=True, since="2"))

    found = seen.with_since((EngineSeen("a", serves=True), EngineSeen("b", serves=False)), before)

    assert found[0].since == "1"
    assert found[1].since not in {"", "2"}


STEP = WriteConfig("docker", PurePosixPath("/etc/docker/daemon.json"), None, None)
DIFFERS = Plan((Part("docker", (STEP,), ("somebody has changed it",)),), Record(), Record(), {})


class Node:
    """A node below a directory whose plan is given, and which remembers what was done to it."""

    def __init__(self, root: Path, plan: Plan, *, stops: bool = False, held: Record | None = None) -> None:
        self.host, self.plan, self.stops, self.held = (
            Host.under(PurePosixPath(root)),
            plan,
            stops,
            held or Record(),
        )
        self.done: list[str] = []
        self.told: list[str] = []
        self.path = root / "run/nvidia/toolkit/toolkit.pid.state"
        self.path.parent.mkdir(parents=True)

    def work(self, drift: Drift = Drift.AUTO) -> looks.Work:
        return looks.Work(
            self.host,
            Options(drift=drift, host_root=PurePosixPath("/nowhere")),
            held=lambda: self.held,
            plan=lambda: self.plan,
            carry_out=self._carry_out,
            publish=lambda _: self.done.append("published"),
            withdraw=lambda: self.done.append("withdrawn"),
            looked=lambda plan, _: self.told.append(f"looked, {len(plan.steps)} steps"),
            failed=lambda error: self.told.append(error.code),
            node_stops=lambda: self.stops,
        )

    def _carry_out(self, plan: Plan) -> None:
        said = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.done.append(
            f"did {len(plan.steps)}, known before: {[*said.get('repairs', ())]} {said.get('doing')}"
        )

    @property
    def said(self) -> Any:
        return json.loads(self.path.read_text())


def test_monitoring_is_told_each_look_and_once_what_is_not_repaired(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS)

    looks.look(node.work(Drift.REPORT), asked=False)
    looks.look(node.work(Drift.REPORT), asked=False)
    looks.look(node.work(), asked=True)

    assert node.told == ["drifted", f"looked, {len(DIFFERS.steps)} steps"]


def test_a_repair_is_on_the_disk_before_its_first_step_for_a_kill_counts_too(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS)

    looks.look(node.work(), asked=False)

    assert node.done == [
        "did 1, known before: ['/etc/docker/daemon.json'] ['create /etc/docker/daemon.json']",
        "published",
    ]


def test_a_node_that_goes_down_is_left_as_it_is(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS, stops=True)

    looks.look(node.work(), asked=False)

    assert node.done == ["withdrawn"]
    assert "it is going down" in node.said["problem"]


def test_a_repair_that_fails_is_told_counted_and_tried_again_later(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS)
    failing = replace(node.work(), carry_out=_refuse)

    watch = looks.look(failing, asked=False)

    assert (node.said["problem"], node.said["code"]) == ("write it", "no-space")
    assert list(node.said["repairs"]) == ["/etc/docker/daemon.json"]
    assert node.done == ["withdrawn"]
    assert 0 < watch.due_s <= 2


@pytest.mark.parametrize("flaps", [False, True], ids=["devices stay", "one comes and goes again"])
def test_a_device_that_was_there_only_while_the_plan_was_made_has_all_looked_at_again(
    tmp_path: Path, *, flaps: bool
) -> None:
    held = Record(cdi=CdiRow(("containerd",)))
    node = Node(tmp_path, Plan((), Record(), Record(), {}), held=held)
    device = tmp_path / "dev/nvidia1"
    device.parent.mkdir()

    def plan() -> Plan:
        if flaps:
            device.touch()
            device.unlink()
        return node.plan

    work = replace(node.work(), plan=plan)
    work = replace(work, options=replace(work.options, driver_root="/driver"))
    (tmp_path / "driver").mkdir()

    watch = looks.look(work, asked=False)

    assert (watch.before == looks.ELSEWISE) is flaps


def test_an_engine_that_has_to_read_a_change_of_its_owners_serves_all_the_same(tmp_path: Path) -> None:
    entry = RuntimeEntry("nvidia", PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime"))
    serving = Effect({"nvidia": Handler(str(entry.binary))}, "runc")
    engine = EngineFacts(
        "docker",
        STEP.path,
        None,
        None,
        (STEP.path,),
        PurePosixPath("/run/docker.sock"),
        "docker.service",
        serving=serving,
    )
    reload = Part("docker", (Reload("docker", (entry,)),), ("its config changes",))
    node = Node(tmp_path, Plan((reload,), Record(), Record(), {"docker": engine}))

    looks.look(node.work(), asked=False)

    assert "docker would have to be reloaded" in node.said["problem"]
    assert [(each["serves"], each["differs"]) for each in node.said["engines"]] == [(True, "")]


def _refuse(_: Plan) -> None:
    raise InstallerError("write it", remedy="make room", code="no-space")


def test_an_engine_of_ours_that_does_not_run_is_no_reason_to_be_ready(tmp_path: Path) -> None:
    row = EngineRow("containerd", PurePosixPath("/run/containerd/containerd.sock"), "containerd.service", ())
    node = Node(tmp_path, Plan((), Record(), Record(), {}), held=Record(engines=(row,), finished=True))

    watch = looks.look(node.work(), asked=False)

    assert "published" not in node.done
    assert node.said["problem"] == "prove that containerd serves our runtimes (it does not run)"
    assert 0 < watch.due_s <= 2


NOT_IDLE = NotIdleError("restart containerd yet (abc)", remedy="wait")


def test_a_restart_that_is_pending_is_told_and_looked_for_again_soon(tmp_path: Path) -> None:
    plan = Plan(
        (),
        Record(),
        Record(),
        {},
        unproven=("containerd",),
        pending={"containerd": NOT_IDLE},
        due=frozenset({"containerd"}),
    )
    node = Node(tmp_path, plan)

    first, again = looks.installed(node.work(), plan), looks.look(node.work(Drift.REPORT), asked=False)

    assert (node.said["problem"], node.said["code"]) == (NOT_IDLE.problem, "restart-pending")
    assert node.told == ["looked, 0 steps"], "and no failure"
    assert "published" not in node.done
    assert [0 < watch.due_s <= looks.PENDING_S for watch in (first, again)] == [True, True]
    assert (node.said["failures"], node.said["repairs"]) == (0, {})


def test_an_engine_that_is_found_busy_right_before_its_restart_has_failed_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS)

    watch = looks.look(replace(node.work(), carry_out=_is_not_idle), asked=False)

    assert (node.said["problem"], node.said["failures"]) == (NOT_IDLE.problem, 0)
    assert node.told == []
    assert node.done == ["withdrawn"]
    assert 0 < watch.due_s <= looks.PENDING_S


def _is_not_idle(_: Plan) -> None:
    raise NOT_IDLE


def test_what_the_ledger_names_is_watched(tmp_path: Path) -> None:
    row = EngineRow("containerd", PurePosixPath("/run/containerd/containerd.sock"), "containerd.service", ())
    node = Node(tmp_path, Plan((), Record(), Record(), {}), held=Record(engines=(row,), finished=True))

    watch = looks.look(node.work(), asked=False)

    below = {place.removeprefix(str(tmp_path)) for place in watch.places}
    assert below >= {"/etc/containerd/", "/run/containerd/containerd.sock", "/usr/local/nvidia/toolkit"}


def test_an_unexpected_mistake_in_a_look_is_told_and_ends_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, DIFFERS)

    looks.look(replace(node.work(), plan=_mistaken), asked=True)

    assert node.said["code"] == "internal-error"


def _mistaken() -> Plan:
    raise KeyError("x")
