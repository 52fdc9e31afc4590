"""What an engine has in force that its config does not say, and what it will not have after its reload."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.reloading import (
    explain_pending,
    explain_stale_runtimes,
    explain_stale_state,
    list_unwanted_defaults,
)
from installer.model.engine_spec import EffectiveConfig, Extras, Runtime, RuntimeEntry
from installer.model.facts import EngineRow, EngineState, Facts, Record, ToolkitFacts
from installer.model.files import File, Layout
from installer.model.steps import WriteConfig

OURS = Layout().toolkit / "nvidia-container-runtime"
ENTRIES = (RuntimeEntry("nvidia", OURS),)
THEIRS = Runtime("/opt/theirs", {"path": "/opt/theirs"})


def engine(
    name: str, serving: EffectiveConfig | None, version: tuple[int, ...] | None = (28, 5)
) -> EngineState:
    row = ENGINES[name]
    return EngineState(
        name, row.config, None, None, (row.config,), row.socket, row.unit, version=version, serving=serving
    )


def said(facts: EngineState, config: dict[str, Any] | str, *, held: Record | None = None) -> list[str]:
    text = config if isinstance(config, str) else json.dumps(config)
    contents = {facts.config: File(text.encode())}
    whole = Facts((facts,), contents, {}, frozenset(), ToolkitFacts(), held or Record())
    return [*explain_stale_state(facts, whole, ENTRIES)]


DEFAULT = "Docker has the default runtime {} in force and /etc/docker/daemon.json says {}: a reload brings "
TABLE = {"theirs": {"path": "/opt/theirs"}}


@pytest.mark.parametrize(
    ("default", "config", "told"),
    [
        ("runc", {}, ""),
        ("theirs", {"runtimes": TABLE}, DEFAULT.format("theirs", "runc")),
        ("theirs", {"runtimes": TABLE, "default-runtime": "theirs"}, ""),
        ("runc", {"runtimes": TABLE, "default-runtime": "theirs"}, DEFAULT.format("runc", "theirs")),
        # Ours comes and goes with us.
        ("nvidia", {"runtimes": TABLE}, ""),
        ("nvidia-cdi", {"runtimes": TABLE}, ""),
        # dockerd would not start with it at all, which is told elsewhere.
        ("theirs", {"runtimes": {**TABLE, "runc": {"path": "/x"}}}, ""),
    ],
)
def test_a_default_that_the_file_does_not_say_is_told(
    default: str, config: dict[str, Any], told: str
) -> None:
    serving = EffectiveConfig({"runc": Runtime("runc"), "theirs": THEIRS}, default)
    held = Record(engines=(EngineRow("docker", ENGINES["docker"].socket, "", {"nvidia-cdi": OURS}),))

    found = said(engine("docker", serving), config, held=held)

    assert [line for line in found if "default runtime" in line] == [
        line for line in found if told and told in line
    ]
    assert bool([line for line in found if "default runtime" in line]) == bool(told)


def test_nothing_is_stale_of_an_engine_that_is_restarted_or_silent() -> None:
    serving = EffectiveConfig({"theirs": THEIRS}, "theirs")

    assert said(engine("containerd", serving), "version = 2\n") == []
    assert said(engine("docker", None), {}) == []
    assert said(engine("docker", serving), {"runtimes": TABLE}) != []


CONTAINERD = {"runtimeType": "io.containerd.runc.v2", "sandboxMode": "podsandbox", "snapshotter": ""}
LIKE = {"runtime_type": "io.containerd.runc.v2", "sandbox_mode": "", "snapshotter": ""}
OFF = {**LIKE, "privileged_without_host_devices": False}


@pytest.mark.parametrize(
    ("served", "defined", "told"),
    [
        pytest.param(CONTAINERD, LIKE, "", id="as its files say, and what it fills in"),
        pytest.param(
            CONTAINERD, None, "which is not defined in its configs: its next start ends that", id="gone"
        ),
        pytest.param(
            CONTAINERD,
            {**LIKE, "runtime_type": "io.containerd.runc.v1"},
            "which is not defined as it is in its configs: its next start changes that",
            id="of another type",
        ),
        pytest.param(
            {**CONTAINERD, "privilegedWithoutHostDevices": True},
            OFF,
            "which is not defined as it is in its configs: its next start changes that",
            id="what the file switches off",
        ),
        pytest.param({**CONTAINERD, "privilegedWithoutHostDevices": False}, OFF, "", id="off in both"),
    ],
)
def test_a_runtime_of_others_that_containerds_next_start_takes_away_is_told(
    served: dict[str, Any], defined: dict[str, Any] | None, told: str
) -> None:
    now = engine("containerd", EffectiveConfig({"x": Runtime("", served), "default": Runtime("/d")}, "runc"))
    wanted = EffectiveConfig({"x": Runtime("", defined)} if defined else {}, "runc", rest_digest="said")

    line = f"containerd serves the runtime x, {told}" if told else None

    assert [*explain_stale_runtimes(now, wanted, ())] == ([line] if line else [])
    assert [*explain_stale_runtimes(now, wanted, {"x"})] == []
    # Where the texts alone tell, or nobody, or it would not start at all, nothing is said.
    assert [*explain_stale_runtimes(now, replace(wanted, rest_digest=""), ())] == []
    assert [*explain_stale_runtimes(now, replace(wanted, broken="why"), ())] == []
    assert [*explain_stale_runtimes(now, None, ())] == []
    assert [*explain_stale_runtimes(replace(now, serving=None), wanted, ())] == []


@pytest.mark.parametrize(
    ("name", "cdi", "asked", "told", "said_of_it"),
    [
        ("docker", None, True, False, "has no effect, for this dockerd has no CDI"),
        ("docker", False, True, True, "takes effect when dockerd starts the next time"),
        ("docker", True, True, True, ""),
        ("docker", False, False, False, ""),
        ("docker", None, False, False, ""),
        ("containerd", None, True, True, "has no effect, for this containerd has no CDI"),
        ("containerd", None, True, False, ""),
        ("containerd", False, True, True, ""),
        ("containerd", True, True, True, ""),
    ],
)
def test_what_becomes_of_cdi_after_a_reload(
    name: str, said_of_it: str, *, cdi: bool | None, asked: bool, told: bool
) -> None:
    facts = engine(name, EffectiveConfig({}, "runc", cdi=cdi))

    found = explain_pending(facts, Extras(cdi=asked), asks_cdi=told)

    assert found.endswith(said_of_it)
    assert bool(found) == bool(said_of_it)
    assert explain_pending(replace(facts, serving=None), Extras(cdi=asked), asks_cdi=told) == ""


@pytest.mark.parametrize(
    ("name", "default", "unwanted"),
    [
        ("docker", None, {"nvidia"}),
        ("docker", "nvidia", set[str]()),
        ("containerd", None, set[str]()),
    ],
)
def test_which_of_ours_may_not_stay_the_default(name: str, default: str | None, unwanted: set[str]) -> None:
    facts = engine(name, None)
    text = {"runtimes": {"nvidia": {"path": str(OURS)}}} | ({"default-runtime": default} if default else {})
    write = WriteConfig(name, facts.config, None, File(json.dumps(text).encode()))

    assert list_unwanted_defaults(facts, ENTRIES, [write] if name == "docker" else []) == unwanted
