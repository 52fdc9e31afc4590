"""What status says of the NRI plugin, by the file that it leaves and its lock."""

import fcntl
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.model.nri import Nri
from installer.nri.state import NAMED, describe_plugin, read_state, remove_plugin
from tests.support.files import put

NRI = Nri(PurePosixPath("/nri/nri.sock"))
STATE: dict[str, Any] = {
    "version": 1,
    "registered": True,
    "engine": "containerd 2.1.9",
    "since": "2026-01-01T00:00:00Z",
    "problem": "",
    "missed": [],
    "missed_in_all": 0,
}
WITHOUT = "containers that ask for devices by annotation start without them"
SINCE = "since 2026-01-01T00:00:00Z"
ENDED = f"has ended (killed), last seen at 2026-01-01T00:00:00Z: {WITHOUT}; start it again"


@pytest.mark.parametrize(
    ("holds", "changed", "state", "good"),
    [
        (True, {}, f"registered with containerd 2.1.9, {SINCE}", True),
        (True, {"registered": False}, f"not registered {SINCE}: {WITHOUT}", False),
        (True, {"registered": False, "problem": "why"}, f"not registered {SINCE} (why): {WITHOUT}", False),
        (False, {"problem": "killed"}, ENDED, False),
    ],
)
def test_a_plugin_that_runs_or_has_ended(
    tmp_path: Path, changed: dict[str, Any], state: str, *, holds: bool, good: bool
) -> None:
    host = put(tmp_path, {NRI.state: json.dumps(STATE | changed), NRI.lock: f"{os.getpid()}\n"})
    with (tmp_path / str(NRI.lock)[1:]).open() as lock:
        if holds:
            fcntl.flock(lock, fcntl.LOCK_EX)
        rows = [each[1:3] for each in describe_plugin(host, NRI, None) if each[0] == "NRI plugin"]

    assert rows == [(state, good)]


@pytest.mark.parametrize(
    "said", ["", json.dumps(STATE | {"version": 2}), json.dumps(STATE | {"missed": [{"pod": "p"}]})]
)
def test_a_damaged_state_file_of_the_plugin_is_ignored(tmp_path: Path, said: str) -> None:
    host = put(tmp_path, {NRI.state: said})

    assert read_state(host, NRI.state) is None
    assert [*describe_plugin(host, NRI, None)] == []


@pytest.mark.parametrize(("listed", "in_all"), [(NAMED, NAMED), (NAMED + 1, NAMED + 1), (2, 200)])
def test_what_it_has_missed_is_told_with_the_first_names(tmp_path: Path, listed: int, in_all: int) -> None:
    missed = [
        {"namespace": "n", "pod": "p", "container": f"c{number}", "asked": ""} for number in range(listed)
    ]
    host = put(tmp_path, {NRI.state: json.dumps(STATE | {"missed": missed, "missed_in_all": in_all})})

    (state,) = (each[1] for each in describe_plugin(host, NRI, None) if "run without" in each[1])

    shown = min(listed, NAMED)
    names = ", ".join(f"n/p/c{number}" for number in range(shown)) + (", ..." if in_all > shown else "")
    assert state.startswith(f"{in_all} containers run without the devices")
    assert f"({names}): " in state


def test_all_files_of_a_plugin_that_was_killed_while_it_published_are_removed(tmp_path: Path) -> None:
    staged = NRI.state.with_name(f"{NRI.state.name}.new")
    host = put(tmp_path, {NRI.state: json.dumps(STATE), staged: "{"})

    remove_plugin(host, NRI)

    assert host.names(NRI.state.parent) == ()
