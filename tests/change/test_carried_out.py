"""How a plan's reload is carried out: how patiently, and when not at all."""

import time
from collections.abc import Iterator
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


@pytest.fixture
def ledger(node: Live) -> Iterator[Ledger]:
    ledger = Ledger.open(node.host, Layout())
    yield ledger
    ledger.lock.release()


def plan_of(ledger: Ledger, *steps: Reload | WriteConfig) -> Plan:
    held = Record(directories=ledger.held.directories)
    part = Part("containerd", tuple((step, "why") for step in steps))
    return Plan((part,), held, held, {"containerd": replace(containerd(), files=())}, "a digest")


def carried_out(
    node: Live,
    ledger: Ledger,
    *steps: Reload | WriteConfig,
    rolls_back: bool = False,
) -> list[str]:
    """Carry out a plan of these steps; return the engines that were reloaded."""
    context = Context(node.host, Layout(), ledger, 0.5, rolls_back=rolls_back)
    carry_out(context, plan_of(ledger, *steps), never_stop)
    return [*ledger.reloaded]


@pytest.mark.parametrize("when_idle", [True, False])
def test_a_restart_waits_for_idle_where_that_was_asked_for(
    node: Live, ledger: Ledger, *, when_idle: bool
) -> None:
    node.answers[CREATED] = ONE

    if when_idle:
        with pytest.raises(NotIdleError):
            carried_out(node, ledger, replace(GIVEN, when_idle=True))
    else:
        assert carried_out(node, ledger, GIVEN) == ["containerd"]
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
    node: Live, ledger: Ledger, step: Reload, *, rolls_back: bool, rests: bool
) -> None:
    node.unit.active, node.unit.sub = "inactive", "dead"
    node.serve("runc", "nvidia") if step.present else node.serve("runc")

    assert carried_out(node, ledger, step, rolls_back=rolls_back) == ([] if rests else ["containerd"])
    assert node.restarted is not rests


def test_a_plan_is_not_remembered_as_failed_where_systemd_was_not_to_be_reached(
    node: Live, ledger: Ledger
) -> None:
    node.serve("runc")
    (node.root / "run/dbus/system_bus_socket").unlink()

    with pytest.raises(InstallerError, match="reach systemd"):
        apply(Context(node.host, Layout(), ledger, 0.5), plan_of(ledger, GIVEN), never_stop)

    assert ledger.held.failed is None


def test_a_pod_that_ends_waits_no_longer_than_its_grace(node: Live, ledger: Ledger) -> None:
    node.serve("runc")
    began = time.monotonic()
    context = Context(node.host, Layout(), ledger, 60, began + 1)

    with pytest.raises(InstallerError, match="verify that containerd serves our runtimes"):
        carry_out(context, plan_of(ledger, GIVEN), never_stop)

    assert time.monotonic() - began < 20


def test_a_config_that_a_failed_reload_leaves_between_two_texts_is_named(
    node: Live, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.serve("runc")
    said = list[tuple[str, object]]()
    monkeypatch.setattr(log, "write", lambda _, event, fields: said.append((event, fields.get("path"))))
    edit = Edit(("default-runtime",), None, '"runc"')
    last = WriteConfig("containerd", PurePosixPath("/etc/site.json"), None, None, passing=(edit,))

    with pytest.raises(InstallerError, match="verify that containerd serves our runtimes"):
        carried_out(node, ledger, GIVEN, last)

    assert ("config is an intermediate text", "/etc/site.json") in said
