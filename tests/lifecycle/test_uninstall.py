"""What verify writes down of what it makes, and what an undo makes of it."""

import json
import stat
from pathlib import Path, PurePosixPath

import pytest

from installer.engines.trial_containers import MARK
from installer.errors import InstallerError
from installer.host.files import Host
from installer.lifecycle import uninstall
from installer.model.files import Layout

LAYOUT = Layout()
NAME = f"{MARK}-1a2b3c4d5e6f7a8b"
MADE = uninstall.Made("docker", PurePosixPath("/no.sock"), "docker.service", NAME)
ROW = ["docker", "/no.sock", "docker.service", NAME]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host.under(PurePosixPath(tmp_path))
    host.local_path(LAYOUT.made).parent.mkdir(parents=True)
    return host


def written(host: Host) -> object:
    local = host.local_path(LAYOUT.made)
    return json.loads(local.read_text())["made"] if local.exists() else []


def test_it_is_written_down_for_root_alone_ahead_of_being_made_and_no_longer_than_it_is_there(
    host: Host,
) -> None:
    with uninstall.record_made(host, LAYOUT, MADE):
        during = written(host), stat.S_IMODE(host.local_path(LAYOUT.made).stat().st_mode)

    assert during == ([ROW], 0o600)
    assert written(host) == []


def test_what_could_not_be_removed_stays_written_down(host: Host) -> None:
    with (
        pytest.raises(InstallerError),
        uninstall.record_made(host, LAYOUT, MADE),
    ):
        raise InstallerError("remove it", remedy="none")

    assert not uninstall.remove_made(host, LAYOUT)
    assert written(host) == [ROW]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param([["docker", "/no.sock", "docker.service", "training"]], id="another name"),
        pytest.param([[ROW]], id="another shape"),
        pytest.param("made", id="a text"),
    ],
)
def test_nothing_is_removed_that_verify_has_not_written(host: Host, made: object) -> None:
    host.local_path(LAYOUT.made).write_text(json.dumps({"made": made}))

    assert not uninstall.remove_made(host, LAYOUT, hurried=True)
