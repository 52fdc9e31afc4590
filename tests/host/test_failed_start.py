"""Why a unit did not start, from what systemd 252 and its journal say of it."""

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
FAILED = {
    "MESSAGE": "containerd.service: Failed to set up mount namespacing",
    "CODE_FILE": "src/core/execute.c",
}


def entry(text: str, invocation: str = "bb", pid: str = "62") -> dict[str, str]:
    return {"MESSAGE": text, "_SYSTEMD_INVOCATION_ID": invocation, "_PID": pid}


def why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *journal: dict[str, Any], **said: tuple[str, Any]
) -> str:
    """Return why the unit did not start; ``journal`` has the latest entry first."""
    (tmp_path / "journal").write_text("".join(f"{json.dumps(each)}\n" for each in journal))
    (tmp_path / "journalctl").write_text(f'#!/bin/sh\n[ "$1" = --sync ] || exec cat {tmp_path}/journal\n')
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setitem(programs.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    fake = FakeSystemd({UNIT: FakeUnit()}, changed=SAID | said)
    monkeypatch.setattr("installer.host.systemd.SYSTEM_BUSES", [PurePosixPath(tmp_path, "bus")])
    with serving(tmp_path / "bus", fake):
        return why_not_started(Host.under(PurePosixPath("/")), UNIT, 10.0, BEFORE)


@pytest.mark.parametrize(
    ("journal", "words"),
    [
        pytest.param(
            [entry("bye"), entry("level=fatal no space"), entry("failed")],
            "level=fatal no space",
            id="the gravest",
        ),
        pytest.param([entry("bye"), entry("hello")], "bye", id="the last, where none is grave"),
        pytest.param([REMARK, entry("bye")], "bye", id="no remark of systemd's"),
        pytest.param([FAILED, entry("bye")], FAILED["MESSAGE"], id="a failure that systemd met"),
        pytest.param(
            [entry("error", invocation="aa"), entry("error: late", pid="61"), entry("bye")],
            "bye",
            id="none of an earlier start",
        ),
        pytest.param([entry("  "), entry("bye")], "bye", id="no blank line"),
        pytest.param([{"MESSAGE": [98, 255]}], "b\N{REPLACEMENT CHARACTER}", id="bytes that are no UTF-8"),
        pytest.param([], "its process exited with status 1", id="nothing"),
    ],
)
def test_the_words_of_a_failed_start_are_its_gravest_of_this_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: list[dict[str, Any]], words: str
) -> None:
    assert why(tmp_path, monkeypatch, *journal) == words


@pytest.mark.parametrize(
    ("command", "words"),
    [
        pytest.param(
            (False, 20_000_000, 1, 7), "its ExecStartPre /sbin/pre exited with status 7: bye", id="failed"
        ),
        pytest.param(
            (False, 20_000_000, 2, 9), "its ExecStartPre /sbin/pre was ended by signal 9: bye", id="killed"
        ),
        pytest.param((True, 20_000_000, 1, 7), "bye", id="it may fail"),
        pytest.param((False, 5_000_000, 1, 7), "bye", id="of an earlier start"),
        pytest.param((False, 20_000_000, 1, 0), "bye", id="it went well"),
    ],
)
def test_a_command_before_the_service_that_failed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[bool, int, int, int], words: str
) -> None:
    ignored, began_us, code, status = command
    row = ("/sbin/pre", ["/sbin/pre"], ignored, began_us, 0, 0, 0, 70, code, status)

    assert why(tmp_path, monkeypatch, entry("bye"), ExecStartPre=("a(sasbttttuii)", [row])) == words
