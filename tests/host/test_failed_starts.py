"""Why a unit did not start: by its commands, as systemd tells of them, and by its journal."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.host import programs
from installer.host.files import Host
from installer.host.systemd import Unit
from installer.host.unit_jobs import why_not_started
from tests.host.servers import FakeSystemd, FakeUnit, serving

UNIT = "containerd.service"


@pytest.fixture(autouse=True)
def programs_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


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
