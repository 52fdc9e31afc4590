"""systemd by the host's systemctl: what is said where that is slow, and where systemd is not there."""

from pathlib import Path

import pytest

from installer.errors import PendingError
from installer.host import programs
from installer.host.systemd import NoBusError
from installer.host.units import run_systemctl, show_start, show_state

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


def test_a_slow_systemctl_is_told_as_slow_not_as_a_systemd_that_cannot_be_reached(program: Path) -> None:
    _written(program, '[ "$1" = reset-failed ] || exec sleep 60')

    with pytest.raises(
        PendingError, match=rf"^cannot run systemctl restart {UNIT} within 0\.3 s \(systemd still"
    ):
        run_systemctl(Path("/"), "restart", UNIT, timeout_s=0.3)
    with pytest.raises(PendingError, match=r"systemctl show .* within 0\.3 s"):
        show_state(Path("/"), UNIT, timeout_s=0.3)


def test_a_systemd_that_is_not_there_cannot_be_reached(program: Path) -> None:
    _written(program, f'echo "{UNBOOTED}" >&2; exit 1')

    with pytest.raises(NoBusError, match="has not been booted"):
        show_state(Path("/"), UNIT, timeout_s=5)


def test_a_restart_is_not_ignored_where_systemctl_sees_a_chroot(program: Path, tmp_path: Path) -> None:
    # As systemctl 252 does it, with its exit code.
    ignoring = "echo \"Running in chroot, ignoring command '$1'\" >&2; exit 0"
    _written(program, f'[ "$SYSTEMD_IGNORE_CHROOT" = 1 ] || {{ {ignoring}; }}; echo "$@" >> {tmp_path}/done')

    run_systemctl(Path("/"), "restart", UNIT, timeout_s=5)

    assert (tmp_path / "done").read_text().splitlines() == [f"reset-failed {UNIT}", f"restart {UNIT}"]


def test_a_host_without_systemctl_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.ENVIRONMENT, "PATH", str(tmp_path))

    with pytest.raises(NoBusError, match="the host's systemctl cannot be run"):
        show_state(Path("/"), UNIT, timeout_s=5)


def test_what_speaks_against_a_restart_is_read_of_one_word_each(program: Path) -> None:
    # As systemctl 252 and 257 print them.
    _written(program, "printf 'KillMode=mixed\\nRefuseManualStart=no\\nRefuseManualStop=yes\\n'")

    start = show_start(Path("/"), UNIT, timeout_s=5)

    assert (start.kill_mode, start.refuses) == ("mixed", ("RefuseManualStop",))
