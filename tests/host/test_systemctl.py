"""systemd by the host's systemctl: what is said where that is slow, and where systemd is not there."""

from pathlib import Path, PurePosixPath

import pytest

from installer.errors import PendingError
from installer.host import programs, systemd, unit_jobs
from installer.host.files import Host
from installer.host.systemd import NoBusError
from installer.host.unit_jobs import Patience

UNIT = "containerd.service"
# Of systemd 252, where nothing has booted it.
UNBOOTED = "System has not been booted with systemd as init system (PID 1). Can't operate."


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the program that is called as systemctl has to be written."""
    monkeypatch.setitem(programs.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "systemctl"


def _written(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host whose own programs are those of this machine, and that has no bus."""
    return Host.under(PurePosixPath("/"), [(PurePosixPath("/run"), PurePosixPath(tmp_path))])


def test_a_slow_systemctl_is_told_as_slow_not_as_a_systemd_that_cannot_be_reached(
    program: Path, host: Host
) -> None:
    _written(program, "exec sleep 60")

    with pytest.raises(PendingError, match=rf"^cannot look at {UNIT} within 0\.3 s \(systemd still"):
        systemd.read_unit(host, UNIT, timeout_s=0.3)


def test_a_systemd_that_is_not_there_cannot_be_reached(program: Path, host: Host) -> None:
    _written(program, f'echo "{UNBOOTED}" >&2; exit 1')

    with pytest.raises(NoBusError, match=r"reach systemd .*No such file"):
        systemd.read_unit(host, UNIT, timeout_s=5)


SHOW = """printf 'LoadState=loaded\\nActiveState=active\\nSubState=running\\nMainPID=%s\\nCanReload=yes\\n'"""


def test_a_restart_is_not_ignored_where_systemctl_sees_a_chroot(
    program: Path, host: Host, tmp_path: Path
) -> None:
    # As systemctl 252 does it, with its exit code.
    ignoring = "echo \"Running in chroot, ignoring command '$1'\" >&2; exit 0"
    show = f'[ "$1" != show ] || {{ {SHOW} "$(cat {tmp_path}/pid)"; exit; }}'
    does = f'echo 8 > {tmp_path}/pid; echo "$@" >> {tmp_path}/done'
    (tmp_path / "pid").write_text("7")
    _written(program, f'{show}\n[ "$SYSTEMD_IGNORE_CHROOT" = 1 ] || {{ {ignoring}; }}\n{does}')

    before = unit_jobs.restart(host, UNIT, Patience(5, lambda: None))

    assert (before.main_pid, before.can_reload) == (7, True)
    done = (tmp_path / "done").read_text().splitlines()
    assert done == [f"reset-failed {UNIT}", f"--no-block restart {UNIT}"]


def test_a_host_without_systemctl_cannot_be_asked(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(programs.ENVIRONMENT, "PATH", str(tmp_path))

    with pytest.raises(NoBusError, match=r"mount the node's /run/dbus"):
        systemd.read_unit(host, UNIT, timeout_s=5)


def test_what_speaks_against_a_restart_is_read_of_one_word_each(program: Path, host: Host) -> None:
    # As systemctl 252 and 257 print them.
    _written(program, "printf 'KillMode=mixed\\nRefuseManualStart=no\\nRefuseManualStop=yes\\n'")

    start = systemd.read_unit(host, UNIT, timeout_s=5).start

    assert (start.kill_mode, start.refuses) == ("mixed", ("RefuseManualStop",))
