"""What happens to a plan while it is carried out, for everything that a whole program cannot be made to meet."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.change.observe import observe_install, observe_undo
from installer.change.plan import Plan, plan_install, plan_rollback, plan_undo
from installer.change.transaction import Context, apply, apply_undo, carry_out, never_stop
from installer.engines import ENGINES
from installer.engines.dry_run import DryRuns
from installer.errors import InstallerError, PendingError, StoppedError, UndoIncompleteError
from installer.host.events import log
from installer.host.files import FS_IMMUTABLE_FL, Host
from installer.model.effective import EffectiveConfig, RuntimeEntry
from installer.model.facts import Record
from installer.model.files import Layout
from installer.model.options import Options, RestartMode
from installer.model.steps import Part, Reload
from tests.support.attributes import attribute
from tests.support.live import Live, containerd, live
from tests.support.neighbours import only_as_root
from tests.support.site import DAEMON_JSON, Site
from tests.support.stand_in import CONFIGS
from tests.support.tree import tree


class Planned:
    """An install that is planned and not begun."""

    def __init__(self, site: Site) -> None:
        self.root, self.before = site.root, site.tree()
        self.options = options = Options(
            engines=("containerd", "docker"),
            toolkit_source=PurePosixPath(site.source),
            host_root=PurePosixPath(site.root),
            restart_mode=RestartMode.NONE,
        )
        self.host = Host.under(options.host_root)
        self.ledger = Ledger.open(self.host, options.layout)
        self.plan = plan_install(observe_install(self.host, options, self.ledger.record), options)
        self.context = Context(self.host, options.layout, self.ledger, timeout_s=1)

    def is_as_before(self) -> bool:
        """Tell whether nothing is left but for the ledger, which goes."""
        self.ledger.remove()
        return tree(self.root) == self.before


@pytest.fixture
def planned(site: Site) -> Planned:
    return Planned(site)


def test_a_config_that_somebody_writes_while_we_work_is_left_to_them(planned: Planned) -> None:
    (planned.root / DAEMON_JSON).write_text('{"theirs": true}\n')

    with pytest.raises(InstallerError, match="another process wrote it at the same moment"):
        apply(planned.context, planned.plan, never_stop)

    assert (planned.root / DAEMON_JSON).read_text() == '{"theirs": true}\n'
    (planned.root / DAEMON_JSON).write_text(CONFIGS[DAEMON_JSON])
    assert planned.is_as_before()


CONTAINERDS = "etc/containerd/config.toml"  # which is written ahead of Docker's


REFUSED = InstallerError("install (the node is busy)", remedy="look at it", code="locked")


def failing(error: InstallerError, at: int) -> Callable[[], None]:
    """Return a check between two steps that fails at one of them."""
    steps = count(1)

    def check() -> None:
        if next(steps) == at:
            raise error

    return check


@pytest.mark.parametrize(
    ("error", "last", "undo_follows", "stays"),
    [
        (StoppedError(), True, True, True),
        (StoppedError(), True, False, False),
        (REFUSED, True, False, False),
        (REFUSED, False, False, False),
    ],
)
def test_what_was_done_is_rolled_back_unless_an_undo_follows_a_stop(
    planned: Planned, error: InstallerError, *, last: bool, undo_follows: bool, stays: bool
) -> None:
    check = failing(error, len(planned.plan.steps) if last else 1)

    with pytest.raises(InstallerError) as raised:
        apply(planned.context, planned.plan, check, undo_follows=undo_follows)

    assert raised.value is error
    assert (CONFIGS[CONTAINERDS] != (planned.root / CONTAINERDS).read_text()) is stays
    assert planned.ledger.record.empty is not stays
    assert stays or planned.is_as_before()


@only_as_root
def test_a_roll_back_logs_no_write_of_a_config_that_was_never_written(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's config comes last; its directory gets ``chattr +i`` after the plan."""
    events: list[tuple[str, str]] = []
    monkeypatch.setattr(
        log, "write", lambda _, event, fields: events.append((event, str(fields.get("path"))))
    )

    with (
        attribute(planned.root / "etc/docker", FS_IMMUTABLE_FL),
        pytest.raises(InstallerError, match=r"daemon.json \(operation not permitted\)"),
    ):
        apply(planned.context, planned.plan, never_stop)

    written = [path for event, path in events if event == "config written"]
    assert written == [f"/{CONTAINERDS}"] * 2  # by the install, and by the roll-back
    assert planned.is_as_before()


@pytest.mark.parametrize("undo_follows", [True, False])
def test_where_a_restart_may_still_come_nothing_is_rolled_back(
    planned: Planned, *, undo_follows: bool
) -> None:
    hangs = PendingError("restart docker (it hangs)", remedy="wait for it", code="engine-not-proven")

    with pytest.raises(UndoIncompleteError) as raised:
        apply(
            planned.context, planned.plan, failing(hangs, len(planned.plan.steps)), undo_follows=undo_follows
        )

    assert raised.value.problem == "finish (restart docker (it hangs))"
    assert (raised.value.remedy, raised.value.code) == (hangs.remedy, hangs.code)
    assert (planned.root / CONTAINERDS).read_text() != CONFIGS[CONTAINERDS]
    assert planned.ledger.record.configs


def test_a_start_that_leaves_read_only_configs_of_an_earlier_install_says_who_undoes_them(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(planned.context, planned.plan, never_stop)
    monkeypatch.setattr(Host, "mounted", lambda _, path: ("read-only",) if path.name == "docker" else ())

    containerd_alone = replace(planned.options, engines=("containerd",))
    facts = observe_install(planned.host, containerd_alone, planned.ledger.record)

    assert [note for note in facts.notes if "an earlier install" in note] == [
        "/etc/docker/daemon.json of an earlier install cannot be replaced here: a stop has systemd undo it on the host"
    ]


def test_an_undo_removes_what_it_can_write_and_names_the_config_that_it_cannot(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(planned.context, planned.plan, never_stop)
    monkeypatch.setattr(Host, "mounted", lambda _, path: ("read-only",) if path.name == "docker" else ())
    facts = observe_undo(planned.host, planned.options, planned.ledger.record)
    plan = plan_undo(facts, planned.options, DryRuns(planned.host, facts.contents))

    apply_undo(planned.context, plan, never_stop)

    assert [need.problem for need in plan.needed] == ["write /etc/docker/daemon.json (read-only file system)"]
    assert (planned.root / CONTAINERDS).read_text() == CONFIGS[CONTAINERDS]
    assert [row.name for row in planned.ledger.record.engines] == ["docker"]
    assert planned.ledger.record.toolkit is not None


NVIDIA = RuntimeEntry("nvidia", PurePosixPath("/opt/nvidia"))
GIVEN = Reload(ENGINES["containerd"], (NVIDIA,))
GIVEN_BACK = Reload(ENGINES["containerd"], (), (NVIDIA,))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path) as node:
        yield node


@pytest.fixture
def ledger(node: Live) -> Iterator[Ledger]:
    ledger = Ledger.open(node.host, Layout())
    yield ledger
    ledger.lock.release()


def plan_of(ledger: Ledger, step: Reload) -> Plan:
    held = Record(directories=ledger.record.directories)
    part = Part("containerd", ((step, "why"),))
    return Plan((part,), held, held, {"containerd": replace(containerd(), files=())}, "a digest")


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

    context = Context(node.host, Layout(), ledger, 0.5, rolls_back=rolls_back)
    carry_out(context, plan_of(ledger, step), never_stop)

    assert [*ledger.reloaded] == ([] if rests else ["containerd"])
    assert node.restarted is not rests


def test_a_plan_is_not_remembered_as_failed_where_systemd_was_not_to_be_reached(
    node: Live, ledger: Ledger
) -> None:
    node.serve("runc")
    (node.root / "run/dbus/system_bus_socket").unlink()

    with pytest.raises(InstallerError, match="reach systemd"):
        apply(Context(node.host, Layout(), ledger, 0.5), plan_of(ledger, GIVEN), never_stop)

    assert ledger.record.failed is None


def test_a_pod_that_ends_waits_no_longer_than_its_grace(node: Live, ledger: Ledger) -> None:
    node.serve("runc")
    began = time.monotonic()
    context = Context(node.host, Layout(), ledger, 60, began + 1)

    with pytest.raises(InstallerError, match="verify that containerd serves our runtimes"):
        carry_out(context, plan_of(ledger, GIVEN), never_stop)

    assert time.monotonic() - began < 20
