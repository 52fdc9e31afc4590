"""Edits of others that are seconds old: which count, and how long an install waits for a restart."""

import os
import time
from pathlib import Path, PurePosixPath
from threading import Timer

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.engines.reload_notes import FRESH_S
from installer.host.events import log
from installer.host.files import Host
from installer.lifecycle import fresh_edits
from installer.lifecycle.fresh_edits import await_restart, find_fresh_edits
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState
from installer.model.facts import ConfigRow, Record
from installer.model.steps import Part, Reload
from tests.support.files import put

CONFIG = PurePosixPath("/etc/containerd/config.toml")
SOCKET = PurePosixPath("/run/containerd/containerd.sock")


def plan_of(name: str = "containerd", *, reloads: bool = True) -> Plan:
    """Return a plan that restarts an engine, whose config has just been changed."""
    engine = replace(EngineState.usual(ENGINES[name]), fresh=(CONFIG,), socket=SOCKET)
    steps = ((Reload(ENGINES[name], ()), "its config changes"),) if reloads else ()
    return Plan((Part(name, steps),), Record(), Record(), {name: engine}, seen={CONFIG: "digest"})


@pytest.mark.parametrize(
    ("plan", "ours", "counts"),
    [
        pytest.param(plan_of(), (), True, id="of others"),
        pytest.param(plan_of(), ("digest",), False, id="ours"),
        pytest.param(plan_of(reloads=False), (), False, id="nothing is restarted"),
        pytest.param(plan_of("docker"), (), False, id="it is signalled"),
    ],
)
def test_an_edit_of_others_counts_before_a_restart(
    plan: Plan, ours: tuple[str, ...], *, counts: bool
) -> None:
    row = ConfigRow("containerd", CONFIG, None, None, ours, ())

    found = find_fresh_edits(plan, Record(configs=(row,)))

    assert found == ({"containerd": (CONFIG,)} if counts else {})


def test_an_install_waits_until_the_edit_is_old_or_the_engine_was_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list[str]()
    monkeypatch.setattr(log, "write", lambda _, event, __: events.append(event))
    host = put(tmp_path, {CONFIG: "", SOCKET: ""})
    serving = EffectiveConfig({}, "runc")
    monkeypatch.setattr(fresh_edits, "ask", lambda _, engine: replace(engine, serving=serving))
    monkeypatch.setattr(fresh_edits, "FRESH_S", 1.0)
    edits = {"containerd": (CONFIG,)}

    began = time.monotonic()
    await_restart(host, plan_of(), edits, timeout_s=1.0)
    until_old_s = time.monotonic() - began
    monkeypatch.setattr(fresh_edits, "FRESH_S", FRESH_S)
    began = time.monotonic()
    Timer(0.5, os.replace, [tmp_path / str(CONFIG)[1:], tmp_path / str(SOCKET)[1:]]).start()
    await_restart(Host.under(PurePosixPath(tmp_path)), plan_of(), edits, timeout_s=1.0)
    until_restarted_s = time.monotonic() - began

    assert 0.5 < until_old_s < FRESH_S / 2
    assert 0.4 < until_restarted_s < FRESH_S / 2
    assert events == ["waiting for a restart by others"] * 2
