"""What stands against the NRI plugin beside ``run``."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.model.engine import EffectiveConfig, EngineState
from installer.model.facts import ConfigRow, Facts, Record, ToolkitFacts
from installer.model.files import File, Meta
from installer.model.nri import Allowed, Nri
from installer.model.options import Mode, Options
from installer.model.steps import Part, WriteConfig, describe
from installer.nri import plan as nri

ALLOWED = (Allowed("operator", "management.nvidia.com/gpu"),)
BESIDE = Options(nri=Nri(allowed=ALLOWED, beside=True))


def engine(name: str, *version: int) -> EngineState:
    return replace(EngineState.usual(ENGINES[name]), version=version or None)


def against(options: Options, *engines: EngineState) -> list[str]:
    facts = Facts(engines, {}, {}, frozenset(), ToolkitFacts(), Record())
    return [error.problem for error in nri.install(facts, options).obstacles]


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        ([("containerd", 2, 0, 8)], ["containerd 2.0.8 takes them and starts"]),
        ([("crio", 1, 33, 1)], ["cri-o 1.33.1 takes them and starts"]),
        ([("docker", 28, 3, 0)], ["Docker by NRI (it has no NRI)"]),
        ([("containerd", 2, 1, 9)], []),
        ([("containerd",)], []),  # whose version is not known
        ([("docker", 28, 3, 0), ("containerd", 2, 1, 9)], []),
    ],
)
def test_a_plugin_that_no_engine_would_serve_is_refused(
    engines: list[tuple[str, *tuple[int, ...]]], words: list[str]
) -> None:
    found = against(BESIDE, *(engine(name, *version) for name, *version in engines))

    assert len(found) == len(words)
    assert [word for word, problem in zip(words, found, strict=True) if word not in problem] == []
    asked = replace(BESIDE, nri=Nri(allowed=ALLOWED), mode=Mode.NRI)
    states = [engine(name, *version) for name, *version in engines]
    assert (against(asked, *states), against(Options(), *states)) == (found, [])


@pytest.mark.parametrize(
    ("told", "held", "refused"),
    [(False, Record(), True), (True, Record(), False), (False, Record(nri=PurePosixPath("/x")), False)],
    ids=["switched off", "switched on", "while the plugin serves"],
)
def test_an_engine_whose_config_has_nri_switched_off_is_refused(
    held: Record, *, told: bool | None, refused: bool
) -> None:
    facts = Facts((engine("containerd", 2, 1, 9),), {}, {}, frozenset(), ToolkitFacts(), held)

    part = nri.install(facts, BESIDE, lambda *_: EffectiveConfig({}, "runc", nri=told))

    assert [each.problem for each in part.obstacles] == (
        ["serve containerd by NRI (its config has NRI switched off)"] if refused else []
    )


PROGRAM = PurePosixPath("/opt/nri/plugins/10-toolkit-installer")
TEXT = b"#!/bin/sh\n"
ROW = ConfigRow(nri.ID, PROGRAM, None, None, (File(TEXT).digest,), ())


def parts(content: bytes) -> tuple[Part, Part]:
    """Return what an install and an undo do where an engine was to start a plugin of 0.2.0."""
    contents = {PROGRAM: File(content, Meta(0o755))}
    engines = (engine("containerd", 2, 1, 9),)
    facts = Facts(engines, contents, {PROGRAM: None}, frozenset(), ToolkitFacts(), Record(configs=(ROW,)))
    return nri.install(facts, BESIDE), nri.undo(facts)


def test_what_0_2_0_had_an_engine_start_goes_and_never_comes_back_unless_somebody_edited_it() -> None:
    for part in parts(TEXT):
        (step,) = part.steps
        assert isinstance(step, WriteConfig)
        assert (step.path, step.after, describe(step).undo) == (PROGRAM, None, None)
        assert not part.rows.configs
    assert not parts(b"x")[1].steps
