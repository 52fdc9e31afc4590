"""What stands against the NRI plugin beside ``run``."""

from pathlib import PurePosixPath

import pytest

from installer.decide.data import replace
from installer.decide.facts import EngineFacts, Facts, ToolkitFacts
from installer.decide.nri.wishes import Allowed, Nri
from installer.decide.options import Mode, Options
from installer.decide.parts import nri
from installer.decide.rows import Record

ALLOWED = (Allowed("operator", "management.nvidia.com/gpu"),)
BESIDE = Options(nri=Nri(allowed=ALLOWED, beside=True))


def engine(name: str, *version: int) -> EngineFacts:
    path = PurePosixPath("/x")
    return EngineFacts(name, path, None, None, (), path, "x.service", version=version or None)


def against(options: Options, *engines: EngineFacts) -> list[str]:
    facts = Facts(engines, {}, {}, frozenset(), (), ToolkitFacts(), Record())
    return [error.problem for error in nri.install(facts, options).obstacles]


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        pytest.param([("containerd", 2, 0, 8)], ["containerd 2.0.8 takes them and starts"], id="drops"),
        pytest.param([("crio", 1, 33, 1)], ["cri-o 1.33.1 takes them and starts"], id="CRI-O drops"),
        pytest.param([("docker", 28, 3, 0)], ["docker by NRI (it has no NRI)"], id="has none"),
        pytest.param([("containerd", 2, 1, 9)], [], id="injects"),
        pytest.param([("crio", 1, 34, 0)], [], id="CRI-O injects"),
        pytest.param([("containerd",)], [], id="nobody knows yet"),
        pytest.param([], [], id="nobody asked"),
        pytest.param([("docker", 28, 3, 0), ("containerd", 2, 1, 9)], [], id="one of two"),
    ],
)
def test_a_plugin_that_no_engine_would_serve_is_refused(
    engines: list[tuple[str, *tuple[int, ...]]], words: list[str]
) -> None:
    found = against(BESIDE, *(engine(name, *version) for name, *version in engines))

    assert len(found) == len(words)
    assert [word for word, problem in zip(words, found, strict=True) if word not in problem] == []


def test_the_mode_asks_for_the_plugin_and_other_modes_do_not() -> None:
    dropping = engine("containerd", 2, 0, 8)

    assert against(replace(BESIDE, nri=Nri(allowed=ALLOWED), mode=Mode.NRI), dropping)
    assert not against(Options(), dropping)
