"""What happens to a plan while it is carried out, for everything that a whole program cannot be made to meet."""

from pathlib import Path, PurePosixPath

import pytest

from installer.decide.errors import InstallerError
from installer.decide.options import Options, RestartMode
from installer.decide.plan import plan_install
from installer.demo import CONFIGS, stand_in_payload
from installer.host.files import Host
from installer.record.context import Context
from installer.record.ledger import Ledger
from installer.record.probe import probe_install
from installer.record.transaction import apply, never_stop
from tests.support.site import DAEMON_JSON


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
    plan = plan_install(probe_install(host, options, ledger.held), options)
    (root / DAEMON_JSON).write_text('{"theirs": true}\n')

    with pytest.raises(InstallerError, match="somebody else wrote it in this very moment"):
        apply(Context(host, options.layout, ledger, timeout_s=1), plan, never_stop)

    assert (root / DAEMON_JSON).read_text() == '{"theirs": true}\n'
    assert (root / "etc/containerd/config.toml").read_text() == CONFIGS["etc/containerd/config.toml"]
    assert not (root / "usr/local/nvidia/toolkit").is_symlink()
    ledger.remove()
    assert not (root / "usr").exists()
