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
from installer.model.options import Options, RestartMode
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


def test_a_config_that_somebody_writes_while_we_work_is_left_to_them(options: Options) -> None:
    host = Host.under(options.host_root)
    root = Path(options.host_root)
    ledger = Ledger.open(host, options.layout)
    plan = plan_install(observe_install(host, options, ledger.held), options)
    (root / DAEMON_JSON).write_text('{"theirs": true}\n')

    with pytest.raises(InstallerError, match="another process wrote it at the same moment"):
        apply(Context(host, options.layout, ledger, timeout_s=1), plan, never_stop)

    assert (root / DAEMON_JSON).read_text() == '{"theirs": true}\n'
    assert (root / "etc/containerd/config.toml").read_text() == CONFIGS["etc/containerd/config.toml"]
    assert not (root / "usr/local/nvidia/toolkit").is_symlink()
    ledger.remove()
    assert not (root / "usr").exists()


CONTAINERDS = "etc/containerd/config.toml"  # which is written ahead of Docker's


def _refused() -> InstallerError:
    return InstallerError("install (the node is busy)", remedy="look at it", code="locked")


@pytest.mark.parametrize(
    ("error", "undo_follows", "stays"),
    [
        pytest.param(StoppedError, True, True, id="told to stop, and an undo follows"),
        pytest.param(StoppedError, False, False, id="told to stop, and nothing follows"),
        pytest.param(_refused, True, False, id="an error, though an undo follows"),
        pytest.param(_refused, False, False, id="an error, and nothing follows"),
    ],
)
def test_what_was_done_is_rolled_back_unless_an_undo_follows_a_stop(
    options: Options, error: Callable[[], InstallerError], *, undo_follows: bool, stays: bool
) -> None:
    host, before = Host.under(options.host_root), tree(Path(options.host_root))
    ledger = Ledger.open(host, options.layout)
    plan = plan_install(observe_install(host, options, ledger.held), options)
    steps = iter(range(len(plan.steps)))

    def check() -> None:
        if next(steps) == len(plan.steps) - 1:
            raise error()

    with pytest.raises(InstallerError) as raised:
        apply(Context(host, options.layout, ledger, timeout_s=1), plan, check, undo_follows=undo_follows)

    assert type(raised.value) is type(error())
    assert (CONFIGS[CONTAINERDS] != (Path(options.host_root) / CONTAINERDS).read_text()) is stays
    assert ledger.held.empty is not stays
    if not stays:
        ledger.remove()
        assert tree(Path(options.host_root)) == before


@pytest.mark.parametrize("undo_follows", [True, False])
def test_where_a_restart_may_still_come_nothing_is_rolled_back(
    options: Options, *, undo_follows: bool
) -> None:
    host = Host.under(options.host_root)
    ledger = Ledger.open(host, options.layout)
    plan = plan_install(observe_install(host, options, ledger.held), options)
    checks: list[int] = []

    def check() -> None:
        checks.append(len(checks))
        if len(checks) == len(plan.steps):
            raise PendingError("restart docker (it hangs)", remedy="wait for it", code="engine-not-proven")

    with pytest.raises(UndoIncompleteError) as raised:
        apply(Context(host, options.layout, ledger, timeout_s=1), plan, check, undo_follows=undo_follows)

    assert (raised.value.problem, raised.value.remedy, raised.value.code) == (
        "finish (restart docker (it hangs))",
        "wait for it",
        "engine-not-proven",
    )
    assert len(checks) == len(plan.steps)
    assert (Path(options.host_root) / CONTAINERDS).read_text() != CONFIGS[CONTAINERDS]
    assert ledger.held.configs


def test_what_stops_an_install_ahead_of_its_first_step_leaves_no_trace(options: Options) -> None:
    host, before = Host.under(options.host_root), tree(Path(options.host_root))
    ledger = Ledger.open(host, options.layout)
    plan = plan_install(observe_install(host, options, ledger.held), options)

    def check() -> None:
        raise _refused()

    with pytest.raises(InstallerError, match="the node is busy"):
        apply(Context(host, options.layout, ledger, timeout_s=1), plan, check)

    ledger.remove()
    assert tree(Path(options.host_root)) == before


def test_a_start_that_leaves_read_only_configs_of_an_earlier_install_says_what_a_stop_will_not_do(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host.under(options.host_root)
    ledger = Ledger.open(host, options.layout)
    plan = plan_install(observe_install(host, options, ledger.held), options)
    apply(Context(host, options.layout, ledger, timeout_s=1), plan, never_stop)
    mounted = Host.mounted
    monkeypatch.setattr(
        Host,
        "mounted",
        lambda host, path: ("read-only",) if str(path) == "/etc/docker" else mounted(host, path),
    )

    facts = observe_install(host, replace(options, engines=("containerd",)), ledger.held)

    said = [note for note in facts.notes if "read-only" in note]
    assert said == [
        "/etc/docker/daemon.json of an earlier install is read-only here: a stop cannot undo it, the uninstall Job can"
    ]
