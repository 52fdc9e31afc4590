"""A containerd is restarted, and believed by what it serves then: all ends, without a real one."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.reload import reload
from installer.errors import EngineStoppedError, InstallerError, NotYetError, OtherUnitError, StoppedError
from installer.host.unit_jobs import Patience
from installer.model.effective import Runtime, RuntimeEntry
from installer.model.steps import Neighbour, Reload
from tests.host.servers import FakeUnit, message
from tests.support.cri import BAD_DEFAULT, PLUGINS, SKIPPED, plugins
from tests.support.live import ASKED, CREATED, ONE, SOCKET, STATUS, Live, containerd, live

NVIDIA = RuntimeEntry("nvidia", PurePosixPath("/opt/nvidia"))
WANTED = Reload(ENGINES["containerd"], (NVIDIA,))
GONE = Reload(ENGINES["containerd"], (), (NVIDIA,))
RUNC = Neighbour("runc", (Runtime("", {"runtimeType": "io.containerd.runc.v2"}),))
FAILED = plugins(("io.containerd.grpc.v1", "cri", BAD_DEFAULT))
OFF = plugins(("io.containerd.grpc.v1", "cri", SKIPPED))
LONG_S = 60.0


def _never() -> None:
    pass


PATIENT = Patience(LONG_S, _never)
HASTY = Patience(0.4, _never)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path) as node:
        yield node


def after_restart(node: Live, act: Callable[[], object]) -> None:
    node.when = lambda member: (act(), None)[1] if member == "RestartUnit" else None


def reloaded(
    node: Live, step: Reload = WANTED, patience: Patience = PATIENT, last_look: Callable[[], None] = _never
) -> bool:
    return reload(node.host, containerd(), step, patience, last_look)


def refused(node: Live, step: Reload = WANTED, patience: Patience = PATIENT) -> str:
    began = time.monotonic()
    with pytest.raises(InstallerError) as caught:
        reloaded(node, step, patience)
    assert time.monotonic() - began < LONG_S / 2
    return f"{caught.value.code}: {caught.value.problem}"


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [(["runc"], ["runc", "nvidia"], WANTED), (["runc", "nvidia"], ["runc"], GONE)],
)
def test_it_is_restarted_once_and_believed_when_it_serves_what_is_wanted(
    node: Live, before: list[str], after: list[str], step: Reload
) -> None:
    node.serve(*before)
    after_restart(node, lambda: node.serve(*after))

    assert reloaded(node, step)

    assert node.systemd.calls.count("RestartUnit") == 1


def test_the_last_look_keeps_a_restart_and_a_stop_is_heard_while_it_does_not_serve_yet(node: Live) -> None:
    node.serve("runc")

    def stop() -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        reloaded(node, last_look=stop)
    assert not node.restarted
    with pytest.raises(StoppedError):
        reloaded(node, patience=Patience(LONG_S, lambda: stop() if node.unit.starts else None))
    assert node.restarted


OTHER_TABLE = Reload(
    ENGINES["containerd"], (replace(NVIDIA, table={"runtimeType": "io.containerd.runc.v1"}),)
)
STILL = "runc=(built in), nvidia=/opt/nvidia, default runc"
NOT_READY = "nvidia=/opt/nvidia, default runc, and reports that it is not ready"
OTHERWISE = "nvidia=/opt/nvidia, default runc, with other settings than asked for in nvidia"


@pytest.mark.parametrize(
    ("names", "more", "step", "serves"),
    [
        (["runc"], {}, WANTED, "runc=(built in), default runc"),
        (["runc", "nvidia"], {}, GONE, STILL),
        (["nvidia"], {"ready": 0}, WANTED, NOT_READY),
        (["nvidia"], {}, OTHER_TABLE, OTHERWISE),
        ([], {"default": ""}, WANTED, "no runtime, default (none)"),
    ],
)
def test_the_error_at_the_deadline_names_what_the_engine_serves_instead(
    node: Live, names: list[str], more: dict[str, Any], step: Reload, serves: str
) -> None:
    node.serve(*names, **more)

    found = refused(node, step, HASTY)

    verb = "no longer serves" if step is GONE else "serves"
    wanted = f"verify that containerd {verb} our runtimes within 0.4 s"
    assert found == f"engine-not-proven: {wanted} (it serves {serves})"


@pytest.mark.parametrize(("plugins_said", "said"), [(FAILED, BAD_DEFAULT), (OFF, "switched off")])
def test_what_waiting_cannot_change_is_told_at_once(node: Live, plugins_said: bytes, said: str) -> None:
    def fails() -> None:
        node.answers.pop(STATUS, None)
        node.answers[PLUGINS] = plugins_said

    after_restart(node, fails)

    found = refused(node)

    assert said in found
    assert "within" not in found


def test_a_service_that_ends_after_its_start_is_told_at_once_in_systemds_words(node: Live) -> None:
    node.serve("runc")

    def end() -> None:
        if ASKED in node.asked and node.unit.active == "active":
            (node.root / SOCKET.name).unlink()
            node.unit.active, node.unit.sub = "failed", "failed"

    assert "(containerd.service is failed/failed)" in refused(node, patience=Patience(LONG_S, end))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (replace(WANTED, others=(RUNC,)), "runc"),
        (replace(WANTED, defaults=frozenset({"runc"})), "the default"),
        (replace(WANTED, others=(RUNC,), defaults=frozenset({"runc"})), "runc, the default"),
    ],
)
def test_who_loses_what_others_had_is_told_at_once(node: Live, step: Reload, said: str) -> None:
    node.serve("nvidia", default="nvidia")

    found = refused(node, step)

    assert found.startswith("others-not-served: verify that containerd serves what it served before (")
    assert found.endswith(f"(missing or changed: {said})")


def test_outside_of_any_service_it_is_not_restarted(node: Live) -> None:
    with pytest.raises(InstallerError, match=r"restart containerd \(it runs outside any systemd service\)"):
        reload(node.host, containerd(""), WANTED, PATIENT, _never)


@pytest.mark.parametrize(
    ("active", "may_rest", "restarted"),
    [
        ("inactive", True, False),
        ("inactive", False, True),  # it is wanted
        ("failed", True, True),
        ("active", True, True),
    ],
)
def test_one_that_its_owner_has_stopped_is_left_so_where_it_may_rest(
    node: Live, active: str, *, may_rest: bool, restarted: bool
) -> None:
    node.serve("runc", "nvidia")
    node.unit.active = active

    assert reloaded(node, patience=replace(PATIENT, may_rest=may_rest)) is restarted
    assert node.restarted is restarted


@pytest.mark.parametrize("lost", [1, 2])
def test_an_owners_stop_is_no_failure_where_an_answer_of_systemd_is_lost(node: Live, lost: int) -> None:
    node.serve("runc")
    k0s = replace(containerd(), kind=ENGINES["k0s"])
    looks = []

    def lose_one_look(member: str) -> None:
        if member == "GetAll":
            looks.append(member)
            node.systemd.fails = (
                {"GetAll": "org.freedesktop.DBus.Error.NoReply"} if len(looks) == lost else {}
            )

    def stop() -> None:
        if node.unit.active == "active":
            (node.root / SOCKET.name).unlink()
            node.unit.active, node.unit.sub = "inactive", "dead"
            node.when = lose_one_look

    with pytest.raises(EngineStoppedError, match=r"containerd\.service was stopped"):
        reload(node.host, k0s, WANTED, Patience(LONG_S, stop), _never)


def test_a_container_that_is_being_made_is_waited_for(node: Live) -> None:
    node.answers[CREATED] = ONE
    looks = []

    def check() -> None:
        looks.append(node.restarted)
        if len(looks) == 2:
            node.answers[CREATED] = b""

    assert reloaded(node, patience=Patience(LONG_S, check))
    assert looks == [False, False]


@pytest.mark.parametrize("when_idle", [True, False])
def test_a_container_stuck_in_created_delays_the_restart_only_with_when_idle(
    node: Live, capfd: pytest.CaptureFixture[str], *, when_idle: bool
) -> None:
    node.answers[CREATED] = message((1, message((1, "f" * 64))))

    with pytest.raises(NotYetError, match="not started: ffffffffffff") if when_idle else nullcontext():
        assert reloaded(node, replace(WANTED, when_idle=when_idle), HASTY)

    assert node.restarted is not when_idle
    assert ("the restart, which begins now; delete their pods" in capfd.readouterr().err) is not when_idle


def test_where_cri_does_not_answer_nothing_is_stranded(node: Live) -> None:
    del node.answers[CREATED]

    assert reloaded(node, replace(WANTED, when_idle=True))


DOCKER = "docker.service"


@pytest.fixture
def bound(node: Live) -> FakeUnit:
    """Have systemd restart docker.service along with containerd, which serves what is wanted."""
    node.serve("runc", "nvidia")
    node.unit.properties["BoundBy"] = ("as", [DOCKER])
    node.systemd.units[DOCKER] = FakeUnit()
    return node.systemd.units[DOCKER]


def _come_to(unit: FakeUnit, active: str, sub: str, starts: int = 0) -> None:
    unit.active, unit.sub, unit.starts = active, sub, starts


def test_a_unit_that_systemd_restarts_along_is_awaited(node: Live, bound: FakeUnit) -> None:
    after_restart(node, lambda: _come_to(bound, "activating", "start-pre"))
    looks: list[str] = []

    def check() -> None:
        looks.append(bound.active)
        if len(looks) == 3:
            _come_to(bound, "active", "running", starts=1)

    assert reloaded(node, patience=Patience(LONG_S, check))

    assert looks == ["activating"] * 3
    assert "StartUnit" not in node.systemd.calls


@pytest.mark.parametrize(
    ("active", "starts", "is_started"),
    [("failed", 1, True), ("inactive", 0, True), ("inactive", 1, False)],
    ids=["failed", "not started again", "ended well"],
)
def test_a_unit_that_is_down_after_the_restart_is_started_once(
    node: Live, bound: FakeUnit, active: str, starts: int, *, is_started: bool
) -> None:
    after_restart(node, lambda: _come_to(bound, active, "dead", starts))

    assert reloaded(node)

    assert node.systemd.calls.count("StartUnit") == is_started
    assert bound.active == ("active" if is_started else "inactive")


@pytest.mark.parametrize("active", ["failed", "activating"], ids=["down", "crashing"])
def test_a_unit_that_does_not_start_with_the_engine_is_named(
    node: Live, bound: FakeUnit, active: str
) -> None:
    after_restart(node, lambda: _come_to(bound, active, "auto-restart", starts=1))
    node.systemd.fails["StartUnit"] = "org.freedesktop.systemd1.UnitMasked"

    with pytest.raises(OtherUnitError) as caught:
        reloaded(node, patience=HASTY)

    assert caught.value.problem.startswith(f"restart containerd together with {DOCKER} (")
    assert f"journalctl -u {DOCKER}" in caught.value.remedy


@pytest.mark.parametrize("is_wanted", [True, False], ids=["was active before the plan", "was down before"])
def test_a_unit_that_was_down_before_the_restart_stays_down_unless_it_is_wanted(
    node: Live, bound: FakeUnit, *, is_wanted: bool
) -> None:
    _come_to(bound, "failed", "failed", starts=1)
    wanted_units = [DOCKER] if is_wanted else []

    assert reload(node.host, containerd(), WANTED, PATIENT, _never, wanted_units=wanted_units)

    assert bound.active == ("active" if is_wanted else "failed")
