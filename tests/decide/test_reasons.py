"""Why a step is taken: each reason by itself, and several in one sentence."""

from pathlib import PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.reloading import PASSING, explain_undo
from installer.model.engine_spec import EffectiveConfig, Runtime, RuntimeEntry
from installer.model.facts import EngineState
from installer.model.files import File
from installer.model.steps import Reload, WriteConfig

OURS = PurePosixPath("/toolkit/nvidia-container-runtime")
ENTRY = RuntimeEntry("nvidia", OURS)
MINE, THEIRS = Runtime(str(OURS)), Runtime("/opt/theirs")
ROW = ENGINES["containerd"]
ENGINE = EngineState("containerd", ROW.config, None, None, (), ROW.socket, ROW.unit)
WANTED, GONE = Reload("containerd", (ENTRY,)), Reload("containerd", (), (ENTRY,))
WELL = "its config is restored"


def serves(default: str = "runc", cdi: bool | None = None, /, **handlers: Runtime) -> EngineState:  # noqa: FBT001
    return replace(ENGINE, serving=EffectiveConfig({"runc": Runtime(), **handlers}, default, cdi=cdi))


@pytest.mark.parametrize(
    ("step", "found", "why"),
    [
        (WANTED, replace(ENGINE, silence="it hangs"), "it is not known what it serves (it hangs)"),
        (WANTED, serves(nvidia=MINE), WELL),
        (WANTED, serves(), "it does not serve nvidia"),
        (WANTED, serves(nvidia=THEIRS), "it serves nvidia otherwise than asked for"),
        (GONE, serves(), WELL),
        (GONE, serves(nvidia=MINE), "it still serves nvidia"),
        (GONE, serves(nvidia=THEIRS), WELL),
        (replace(GONE, demoted=frozenset({"nvidia"})), serves(), WELL),
        (replace(GONE, demoted=frozenset({"nvidia"})), serves("nvidia"), "its default runtime is nvidia"),
        (replace(GONE, cdi=True), serves("runc", False), "it does not serve CDI devices"),
        (replace(GONE, cdi=True), serves("runc", True), WELL),
        (replace(GONE, cdi=True), serves("runc", None), WELL),
        (GONE, serves("runc", False), WELL),
        (WANTED, replace(serves(nvidia=MINE), outdated=True), "its config was changed after its start"),
        (
            replace(WANTED, absent=(RuntimeEntry("old", OURS),)),
            serves(old=MINE),
            "it does not serve nvidia and it still serves old",
        ),
        (
            replace(WANTED, present=(ENTRY, RuntimeEntry("a", OURS), RuntimeEntry("b", OURS))),
            serves(nvidia=THEIRS),
            "it does not serve a, b and it serves nvidia otherwise than asked for",
        ),
    ],
)
def test_why_an_engine_is_reloaded(step: Reload, found: EngineState, why: str) -> None:
    assert [reason for _, reason in explain_undo([step], found)] == [why]


def test_why_a_config_is_written_back() -> None:
    before, after = File(b"a"), File(b"b")
    passing = WriteConfig("docker", PurePosixPath("/a"), before, after)
    removed = WriteConfig("docker", PurePosixPath("/a"), after, None)
    other: Any = WriteConfig("docker", PurePosixPath("/b"), before, after)

    assert [reason for _, reason in explain_undo([passing, other, removed], serves())] == [
        PASSING,
        "reverts what install changed",
        "reverts what install made",
    ]


@pytest.mark.parametrize("default", ["runc", "nvidia"])
@pytest.mark.parametrize("cdi", [True, False, None])
def test_an_engine_serves_what_was_asked_for_where_nothing_of_it_is_missing(
    default: str, *, cdi: bool | None
) -> None:
    serving = EffectiveConfig({"runc": Runtime()}, default, cdi=cdi)
    step = replace(GONE, demoted=frozenset({"nvidia"}), cdi=True)

    assert step.satisfied_by(serving) == (default == "runc" and cdi is not False)
    assert replace(step, cdi=False).satisfied_by(serving) == (default == "runc")
    assert replace(step, demoted=frozenset(), absent=()).satisfied_by(serving) == (cdi is not False)
