"""What is done about drift, as tables: when it is repaired, when not yet, and when not any more."""

from itertools import pairwise
from pathlib import PurePosixPath

import pytest

from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.lifecycle import drift
from installer.lifecycle.drift import Drifted
from installer.model.facts import Record
from installer.model.files import File
from installer.model.options import Drift
from installer.model.steps import (
    FindRuntimes,
    InstallVersion,
    Part,
    Reload,
    RemoveVersion,
    Step,
    SwitchToolkit,
    WriteConfig,
    for_reason,
)

CONFIG = "/etc/containerd/config.toml"
WHY = "missing or different: the runtime nvidia"
FILE = Drifted({CONFIG: WHY})
RESTART = Drifted({CONFIG: WHY, "containerd": "it does not serve nvidia"}, ("containerd",))
NOW = 100_000.0


def clock(moment_s: float) -> str:
    return f"second {moment_s:g}"


@pytest.mark.parametrize(
    ("policy", "drifted", "why"),
    [
        (Drift.REPORT, Drifted({}), ""),
        (Drift.AUTO, FILE, ""),
        (Drift.AUTO, RESTART, "containerd would have to be restarted"),
        (Drift.REPAIR, RESTART, ""),
        (Drift.REPORT, FILE, "--drift report repairs nothing"),
        (Drift.IGNORE, FILE, "--drift ignore repairs nothing"),
    ],
)
def test_the_policy_says_what_is_repaired_and_who_is_refused_the_way_out(
    policy: Drift, drifted: Drifted, why: str
) -> None:
    refusal = drift.find_refusal(policy, drifted, {}, NOW, clock)

    assert (refusal is not None) == bool(why)
    if refusal is not None:
        assert f"({why}; {drifted.summary})" in refusal.reason.problem
        assert "toolkit-installer reconcile" in refusal.reason.remedy


def _writes(engine: str) -> WriteConfig:
    return WriteConfig(engine, PurePosixPath(CONFIG), None, File(b"ours"))


CONTAINERD_KIND = ENGINES["containerd"]
RESTARTS: list[Step] = [_writes("containerd"), FindRuntimes(CONTAINERD_KIND, ()), Reload(CONTAINERD_KIND, ())]


@pytest.mark.parametrize(
    ("steps", "things", "engines"),
    [
        pytest.param(RESTARTS, [CONFIG, "containerd"], ("containerd",), id="a config and a restart"),
        pytest.param([_writes("k0s")], [CONFIG], ("k0s",), id="a write that its engine restarts itself for"),
        pytest.param([InstallVersion("1", ()), SwitchToolkit("", "1")], ["the toolkit"], (), id="toolkit"),
        pytest.param([RemoveVersion("0")], [], (), id="what nobody needs any more is no drift"),
    ],
)
def test_a_plan_tells_what_differs_and_which_engines_it_disturbs(
    steps: list[Step], things: list[str], engines: tuple[str, ...]
) -> None:
    part = Part("x", for_reason("because", steps))

    drifted = Drifted.of(Plan((part,), Record(), Record(), {}), Record())

    assert ([*drifted.things], drifted.engines) == (things, engines)


def test_the_repair_of_one_thing_does_not_hold_up_that_of_another() -> None:
    assert drift.find_refusal(Drift.AUTO, FILE, {"/etc/docker/daemon.json": (NOW - 1,)}, NOW, clock) is None


def test_the_thing_that_was_repaired_most_often_decides_for_all() -> None:
    repairs = {CONFIG: (NOW - 1,), "containerd": (NOW - 300, NOW - 200, NOW - 100)}

    refusal = drift.find_refusal(Drift.REPAIR, RESTART, repairs, NOW, clock)

    assert refusal is not None
    assert refusal.until_s == NOW + 200


def test_the_end_says_who_has_to_be_found_and_until_when_nothing_is_done() -> None:
    repairs = {CONFIG: tuple(NOW - each for each in (3000, 2900, 2800, 2700, 2600))}

    refusal = drift.find_refusal(Drift.AUTO, FILE, repairs, NOW, clock)

    assert refusal is not None
    assert refusal.reason.code == "drift-repeats"
    assert f"keep {CONFIG} as it was installed" in refusal.reason.problem
    assert f"5 repairs within an hour, the last at second {NOW - 2600:g}" in refusal.reason.problem
    assert "find what changes it" in refusal.reason.remedy
    assert refusal.until_s == NOW + 600


def test_whoever_rewrites_all_the_time_makes_at_most_five_repairs_in_any_hour() -> None:
    repairs: dict[str, tuple[float, ...]] = {}
    done: list[float] = []
    now = NOW
    while now < NOW + 5 * drift.HOUR_S:
        if drift.find_refusal(Drift.AUTO, FILE, repairs, now, clock) is None:
            repairs = dict(drift.add_repair(repairs, FILE.things, now))
            done.append(now)
        now += 1.0

    assert [later - earlier for earlier, later in pairwise(done[:5])] == list(drift.PAUSES_S[1:])
    assert max(sum(each <= one < each + drift.HOUR_S for one in done) for each in done) == 5


def test_repairs_of_more_than_an_hour_ago_are_forgotten() -> None:
    hour_ago = NOW - drift.HOUR_S
    edges = (hour_ago, hour_ago + 1, NOW, NOW + 1)  # the last one is of a clock of another boot

    assert drift.select_recent({CONFIG: (hour_ago,), "docker": edges}, NOW) == {"docker": edges[1:3]}


def test_looks_that_find_nothing_again_and_again_get_rarer() -> None:
    assert drift.rest_s([NOW - each for each in range(590, 600)], NOW) == drift.REST_S
    assert drift.rest_s([NOW - each for each in range(591, 601)], NOW) == 0, "one of the ten is too long ago"
