"""What status says of the NRI plugin, by the file that it leaves and its lock."""

import fcntl
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.host.files import Host
from installer.model.nri import Nri
from installer.nri.state import NAMED, describe_plugin, read_state

NRI = Nri(PurePosixPath("/nri/nri.sock"))
MISSED = {"namespace": "n", "pod": "p", "container": "c"}
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


def put(root: Path, said: object) -> Host:
    (root / "nri").mkdir(exist_ok=True)
    (root / str(NRI.state)[1:]).write_text(said if isinstance(said, str) else json.dumps(said))
    return Host.under(PurePosixPath(root))


def told(root: Path, *, holds: bool, **changed: Any) -> list[tuple[str, bool]]:
    host = put(root, STATE | changed)
    lock = os.open(root / str(NRI.lock)[1:], os.O_RDWR | os.O_CREAT)
    if holds:
        os.write(lock, f"{os.getpid()}\n".encode())
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        return [
            (state, good) for what, state, good, _ in describe_plugin(host, NRI, None) if what == "NRI plugin"
        ]
    finally:
        os.close(lock)


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
    assert told(tmp_path, holds=holds, **changed) == [(state, good)]


@pytest.mark.parametrize(("listed", "in_all"), [(NAMED, NAMED), (NAMED + 1, NAMED + 1), (2, 200)])
def test_what_it_has_missed_is_told_with_the_first_names(tmp_path: Path, listed: int, in_all: int) -> None:
    missed = [MISSED | {"container": f"c{number}", "asked": "gpu"} for number in range(listed)]

    (_, (state, good)) = told(tmp_path, holds=True, missed=missed, missed_in_all=in_all)

    shown = min(listed, NAMED)
    names = ", ".join(f"n/p/c{number}" for number in range(shown)) + (", ..." if in_all > shown else "")
    assert state.startswith(f"{in_all} containers run without the devices")
    assert f"({names}): " in state
    assert not good


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("", id="nothing"),
        pytest.param(STATE | {"version": 2}, id="of a later version"),
        pytest.param(STATE | {"missed": [{"pod": "p"}]}, id="a list of less"),
    ],
)
def test_what_is_no_state_tells_nothing(tmp_path: Path, said: object) -> None:
    host = put(tmp_path, said)

    assert read_state(host, NRI.state) is None
    assert [*describe_plugin(host, NRI, None)] == []
