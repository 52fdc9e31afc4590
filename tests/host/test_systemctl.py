"""systemd by the host's own programs: what systemctl does without a bus, and why a unit did not start by its journal."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.errors import PendingError
from installer.host import programs, systemd, unit_jobs
from installer.host.files import Host
from installer.host.systemd import NoBusError, Unit
from installer.host.unit_jobs import Patience, why_not_started
from tests.host.servers import FakeSystemd, FakeUnit, serving

UNIT = "containerd.service"


@pytest.fixture(autouse=True)
def programs_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host whose own programs are those of this machine, and that has no bus."""
    return Host.under(PurePosixPath("/"), [(PurePosixPath("/run"), PurePosixPath(tmp_path))])


# Of systemd 252, where nothing has booted it.
UNBOOTED = "System has not been booted with systemd as init system (PID 1). Can't operate."


@pytest.mark.parametrize(
    ("script", "timeout_s", "error"),
    [
        pytest.param("exec sleep 60", 0.3, PendingError, id="slow"),
        pytest.param(f'echo "{UNBOOTED}" >&2; exit 1', 5, NoBusError, id="not there"),
    ],
)
def test_a_systemctl_that_is_slow_is_no_systemd_that_cannot_be_reached(
    host: Host, tmp_path: Path, script: str, timeout_s: float, error: type[Exception]
) -> None:
    write_program(tmp_path / "systemctl", script)

    with pytest.raises(error):
        systemd.read_unit(host, UNIT, timeout_s=timeout_s)


SHOW = """printf 'LoadState=loaded\\nActiveState=active\\nSubState=running\\nMainPID=%s\\nCanReload=yes\\n'"""


def test_a_restart_is_not_ignored_where_systemctl_sees_a_chroot(host: Host, tmp_path: Path) -> None:
    # As systemctl 252 does it, with its exit code.
    ignoring = "echo \"Running in chroot, ignoring command '$1'\" >&2; exit 0"
    show = f'[ "$1" != show ] || {{ {SHOW} "$(cat {tmp_path}/pid)"; exit; }}'
    does = f'echo 8 > {tmp_path}/pid; echo "$@" >> {tmp_path}/done'
    (tmp_path / "pid").write_text("7")
    ignores = f'[ "$SYSTEMD_IGNORE_CHROOT" = 1 ] || {{ {ignoring}; }}'
    write_program(tmp_path / "systemctl", f"{show}\n{ignores}\n{does}")

    before = unit_jobs.restart(host, UNIT, Patience(5, lambda: None))

    assert (before.main_pid, before.can_reload) == (7, True)
    done = (tmp_path / "done").read_text().splitlines()
    assert done == [f"reset-failed {UNIT}", f"--no-block restart {UNIT}"]


def test_what_speaks_against_a_restart_is_read_of_one_word_each(host: Host, tmp_path: Path) -> None:
    # As systemctl 252 and 257 print them.
    script = "printf 'KillMode=mixed\\nRefuseManualStart=no\\nRefuseManualStop=yes\\n'"
    write_program(tmp_path / "systemctl", script)

    start = systemd.read_unit(host, UNIT, timeout_s=5).start

    assert (start.kill_mode, start.refuses) == ("mixed", ("RefuseManualStop",))


BEFORE = Unit("loaded", "active", "running", 61, can_reload=False, job=0, invocation="aa", result="success")
# As of a process of this start that has ended by exit(1); of ExecStartPre: path, words, moments, pid, how it ended.
SAID: dict[str, tuple[str, Any]] = {
    "ExecStartPre": ("a(sasbttttuii)", []),
    "ExecMainStartTimestamp": ("t", 20_000_000),
    "ExecMainCode": ("i", 1),
    "ExecMainStatus": ("i", 1),
}
# A remark of systemd's own has a place in its code.
REMARK = {"MESSAGE": "Executable modprobe missing, skipping", "CODE_FILE": "src/core/execute.c"}
FAILED = REMARK | {"MESSAGE": "containerd.service: Failed to set up mount namespacing"}
EARLIER = {"MESSAGE": "error", "_SYSTEMD_INVOCATION_ID": "aa"}
LATE = {"MESSAGE": "error: late", "_SYSTEMD_INVOCATION_ID": "bb", "_PID": "61"}
BYE, GRAVE = ({"MESSAGE": text, "_SYSTEMD_INVOCATION_ID": "bb"} for text in ("bye", "level=fatal no space"))
PRE = ("/sbin/pre", ["/sbin/pre"], False, 20_000_000, 0, 0, 0, 70, 1, 7)
MAY_FAIL, OF_BEFORE = (*PRE[:2], True, *PRE[3:]), (*PRE[:3], 5_000_000, *PRE[4:])


@pytest.mark.parametrize(
    ("journal", "pre", "words"),
    [
        pytest.param([BYE, GRAVE], (), "level=fatal no space", id="the gravest of its last lines"),
        pytest.param([REMARK, EARLIER, LATE, BYE], (), "bye", id="none of systemd's or of an earlier start"),
        pytest.param([FAILED, BYE], (), FAILED["MESSAGE"], id="a failure that systemd met"),
        pytest.param(
            [{"MESSAGE": [98, 255]}], (), "b\N{REPLACEMENT CHARACTER}", id="bytes that are no UTF-8"
        ),
        pytest.param([], (), "its process exited with status 1", id="nothing"),
        pytest.param(
            [BYE], PRE, "its ExecStartPre /sbin/pre exited with status 7: bye", id="a command before"
        ),
        pytest.param([BYE], MAY_FAIL, "bye", id="a command that may fail"),
        pytest.param([BYE], OF_BEFORE, "bye", id="a command of an earlier start"),
    ],
)
def test_why_a_unit_did_not_start_is_told_by_its_commands_and_its_gravest_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    journal: list[dict[str, Any]],
    pre: tuple[object, ...],
    words: str,
) -> None:
    (tmp_path / "journal").write_text(
        "".join(f"{json.dumps(each)}\n" for each in journal)
    )  # the latest first
    write_program(tmp_path / "journalctl", f'[ "$1" = --sync ] || exec cat {tmp_path}/journal')
    fake = FakeSystemd(
        {UNIT: FakeUnit()}, changed=SAID | {"ExecStartPre": ("a(sasbttttuii)", [pre] if pre else [])}
    )
    monkeypatch.setattr("installer.host.systemd.SYSTEM_BUSES", [PurePosixPath(tmp_path, "bus")])

    with serving(tmp_path / "bus", fake):
        assert why_not_started(Host.under(PurePosixPath("/")), UNIT, 10.0, BEFORE) == words
