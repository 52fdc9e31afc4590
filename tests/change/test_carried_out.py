"""How a plan's reload is carried out: how patiently, and when not at all."""

import time
from collections.abc import Iterator
from math import inf
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.change.plan import Plan, plan_rollback
from installer.change.transaction import Context, apply, carry_out, never_stop
from installer.config_text import Edit
from installer.errors import InstallerError, NotIdleError
from installer.host.events import log
from installer.model.engine_spec import EffectiveConfig, RuntimeEntry
from installer.model.facts import Record
from installer.model.files import Layout
from installer.model.steps import Part, Reload, WriteConfig
from tests.support.live import CREATED, ONE, Live, containerd, live

NVIDIA = RuntimeEntry("nvidia", PurePosixPath("/opt/nvidia"))
GIVEN = Reload("containerd", (NVIDIA,))
GIVEN_BACK = Reload("containerd", (), (NVIDIA,))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path) as node:
        yield node


def carried_out(
    node: Live,
    step: Reload,
    *,
    rolls_back: bool = False,
    until_s: float = inf,
) -> list[str]:
    """Carry out a plan of one reload; return the engines that were reloaded."""
    ledger = Ledger.open(node.host, Layout())
    try:
        context = Context(node.host, Layout(), ledger, 0.5, until_s, rolls_back=rolls_back)
        engine = replace(containerd(), files=())
        held = Record(directories=ledger.held.directories)
        plan = Plan((Part("containerd", ((step, "why"),)),), held, held, {"containerd": engine})
        carry_out(context, plan, never_stop)
        return [*ledger.reloaded]
    finally:
        ledger.lock.release()


@pytest.mark.parametrize("when_idle", [True, False])
def test_a_restart_waits_for_idle_where_that_was_asked_for(node: Live, *, when_idle: bool) -> None:
    node.answers[CREATED] = ONE

    if when_idle:
        with pytest.raises(NotIdleError):
            carried_out(node, replace(GIVEN, when_idle=True))
    else:
        assert carried_out(node, GIVEN) == ["containerd"]
    assert node.restarted is not when_idle


def test_on_the_way_back_a_restart_does_not_wait_for_idle() -> None:
    engine = replace(containerd(), serving=EffectiveConfig({}, "runc"))
    plan = Plan((), Record(), Record(), {"containerd": engine})
    back = plan_rollback(plan, (replace(GIVEN, when_idle=True),), Record())
    assert [step.when_idle for step in back.steps if isinstance(step, Reload)] == [False]


@pytest.mark.parametrize(
    ("step", "rolls_back", "rests"),
    [(GIVEN, False, False), (GIVEN, True, True), (GIVEN_BACK, False, True), (GIVEN_BACK, True, True)],
)
def test_an_engine_that_its_owner_has_stopped_is_started_for_an_install_alone(
    node: Live, step: Reload, *, rolls_back: bool, rests: bool
) -> None:
    node.unit.active, node.unit.sub = "inactive", "dead"
    node.serve("runc", "nvidia") if step.present else node.serve("runc")

    assert carried_out(node, step, rolls_back=rolls_back) == ([] if rests else ["containerd"])
    assert node.restarted is not rests


def test_a_plan_is_not_remembered_as_failed_where_systemd_was_not_to_be_reached(node: Live) -> None:
    node.serve("runc")
    (node.root / "run/dbus/system_bus_socket").unlink()
    ledger = Ledger.open(node.host, Layout())
    engine = replace(containerd(), files=())
    held = Record(directories=ledger.held.directories)
    plan = Plan((Part("containerd", ((GIVEN, "why"),)),), held, held, {"containerd": engine}, "a digest")

    with pytest.raises(InstallerError, match="reach systemd"):
        apply(Context(node.host, Layout(), ledger, 0.5), plan, never_stop)

    assert ledger.held.failed is None
    ledger.lock.release()


def test_a_pod_that_ends_waits_no_longer_than_its_grace(node: Live) -> None:
    node.serve("runc")
    began = time.monotonic()

    with pytest.raises(InstallerError, match="verify that containerd serves our runtimes"):
        carried_out(node, GIVEN, until_s=began + 1)

    assert time.monotonic() - began < 20


def test_a_config_that_a_failed_reload_leaves_between_two_texts_is_named(
    node: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.serve("runc")
    said = list[tuple[str, object]]()
    monkeypatch.setattr(log, "write", lambda _, event, fields: said.append((event, fields.get("path"))))
    ledger = Ledger.open(node.host, Layout())
    engine = replace(containerd(), files=())
    edit = Edit(("default-runtime",), None, '"runc"')
    last = WriteConfig("containerd", PurePosixPath("/etc/site.json"), None, None, passing=(edit,))
    held = Record(directories=ledger.held.directories)
    plan = Plan((Part("containerd", ((GIVEN, "why"), (last, "why"))),), held, held, {"containerd": engine})

    with pytest.raises(InstallerError, match="verify that containerd serves our runtimes"):
        carry_out(Context(node.host, Layout(), ledger, 0.5), plan, never_stop)

    assert ("config is an intermediate text", "/etc/site.json") in said
    ledger.lock.release()
