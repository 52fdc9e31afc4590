"""What stands against the NRI plugin beside ``run``."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState
from installer.model.facts import Facts, Record, ToolkitFacts
from installer.model.nri import Allowed, Nri
from installer.model.options import Mode, Options
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
