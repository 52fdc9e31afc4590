"""What happens to a plan while it is carried out, for everything that a whole program cannot be made to meet."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.change.observe import observe_install
from installer.change.plan import plan_install
from installer.change.transaction import Context, apply, never_stop
from installer.errors import InstallerError, PendingError, StoppedError, UndoIncompleteError
from installer.host.files import Host
from installer.model.files import File
from installer.model.options import Options, RestartMode
from installer.model.steps import (
    ConcreteStep,
    MakeDirectory,
    Reload,
    RemoveDirectory,
    SwitchToolkit,
    WriteConfig,
    describe,
)
from tests.support.site import DAEMON_JSON
from tests.support.stand_in import CONFIGS, stand_in_payload
from tests.support.tree import tree


@pytest.fixture
def options(tmp_path: Path) -> Options:
    root = tmp_path / "node"
    for name, text in CONFIGS.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    stand_in_payload(tmp_path / "artifacts")
    return Options(
        engines=("containerd", "docker"),
        toolkit_source=PurePosixPath(tmp_path / "artifacts"),
        host_root=PurePosixPath(root),
        restart_mode=RestartMode.NONE,
    )


class Planned:
    """An install that is planned and not begun."""

    def __init__(self, options: Options) -> None:
        self.root, self.before = Path(options.host_root), tree(Path(options.host_root))
        self.host = Host.under(options.host_root)
        self.ledger = Ledger.open(self.host, options.layout)
        self.plan = plan_install(observe_install(self.host, options, self.ledger.held), options)
        self.context = Context(self.host, options.layout, self.ledger, timeout_s=1)

    def is_as_before(self) -> bool:
        """Tell whether nothing is left but for the ledger, which goes."""
        self.ledger.remove()
        return tree(self.root) == self.before


@pytest.fixture
def planned(options: Options) -> Planned:
    return Planned(options)


def test_a_config_that_somebody_writes_while_we_work_is_left_to_them(planned: Planned) -> None:
    (planned.root / DAEMON_JSON).write_text('{"theirs": true}\n')

    with pytest.raises(InstallerError, match="another process wrote it at the same moment"):
        apply(planned.context, planned.plan, never_stop)

    assert (planned.root / DAEMON_JSON).read_text() == '{"theirs": true}\n'
    (planned.root / DAEMON_JSON).write_text(CONFIGS[DAEMON_JSON])
    assert planned.is_as_before()


CONTAINERDS = "etc/containerd/config.toml"  # which is written ahead of Docker's


def _refused() -> InstallerError:
    return InstallerError("install (the node is busy)", remedy="look at it", code="locked")


@pytest.mark.parametrize(
    ("error", "moment", "undo_follows", "stays"),
    [
        pytest.param(StoppedError, -1, True, True, id="told to stop, and an undo follows"),
        pytest.param(StoppedError, -1, False, False, id="told to stop, and nothing follows"),
        pytest.param(_refused, -1, True, False, id="an error, though an undo follows"),
        pytest.param(_refused, -1, False, False, id="an error, and nothing follows"),
        pytest.param(_refused, 0, False, False, id="an error ahead of the first step"),
    ],
)
def test_what_was_done_is_rolled_back_unless_an_undo_follows_a_stop(
    planned: Planned, error: Callable[[], InstallerError], moment: int, *, undo_follows: bool, stays: bool
) -> None:
    steps = iter(range(len(planned.plan.steps)))

    def check() -> None:
        if next(steps) == moment % len(planned.plan.steps):
            raise error()

    with pytest.raises(InstallerError) as raised:
        apply(planned.context, planned.plan, check, undo_follows=undo_follows)

    assert type(raised.value) is type(error())
    assert (CONFIGS[CONTAINERDS] != (planned.root / CONTAINERDS).read_text()) is stays
    assert planned.ledger.held.empty is not stays
    assert stays or planned.is_as_before()


@pytest.mark.parametrize("undo_follows", [True, False])
def test_where_a_restart_may_still_come_nothing_is_rolled_back(
    planned: Planned, *, undo_follows: bool
) -> None:
    checks: list[int] = []

    def check() -> None:
        checks.append(len(checks))
        if len(checks) == len(planned.plan.steps):
            raise PendingError("restart docker (it hangs)", remedy="wait for it", code="engine-not-proven")

    with pytest.raises(UndoIncompleteError) as raised:
        apply(planned.context, planned.plan, check, undo_follows=undo_follows)

    assert (raised.value.problem, raised.value.remedy, raised.value.code) == (
        "finish (restart docker (it hangs))",
        "wait for it",
        "engine-not-proven",
    )
    assert len(checks) == len(planned.plan.steps)
    assert (planned.root / CONTAINERDS).read_text() != CONFIGS[CONTAINERDS]
    assert planned.ledger.held.configs


def test_a_start_that_leaves_read_only_configs_of_an_earlier_install_says_what_a_stop_will_not_do(
    planned: Planned, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(planned.context, planned.plan, never_stop)
    mounted = Host.mounted
    monkeypatch.setattr(
        Host,
        "mounted",
        lambda host, path: ("read-only",) if str(path) == "/etc/docker" else mounted(host, path),
    )

    facts = observe_install(planned.host, replace(options, engines=("containerd",)), planned.ledger.held)

    said = [note for note in facts.notes if "read-only" in note]
    assert said == [
        "/etc/docker/daemon.json of an earlier install is read-only here: a stop cannot undo it, the uninstall Job can"
    ]


PATH = PurePosixPath("/etc/docker/daemon.json")
ANY = File(b"{}")


@pytest.mark.parametrize(
    ("step", "event"),
    [
        (MakeDirectory(PATH), "directory made"),
        (RemoveDirectory(PATH), "directory removed"),
        (WriteConfig("docker", PATH, None, ANY), "config written"),
        (WriteConfig("docker", PATH, ANY, None), "config removed"),
        (SwitchToolkit("", "v"), "toolkit link created"),
        (SwitchToolkit("v", "w"), "toolkit link changed"),
        (SwitchToolkit("v", ""), "toolkit link removed"),
        (SwitchToolkit("v", None), "previous toolkit restored"),
        (SwitchToolkit(None, None), "previous toolkit removed"),
        (Reload("docker", ()), "engine reloaded"),
        (Reload("microk8s", ()), "engine restarted"),
        (Reload("k0s", ()), "engine restarted by itself"),
    ],
)
def test_a_step_that_is_done_is_told_in_the_past(step: ConcreteStep, event: str) -> None:
    assert describe(step).event == event
