"""An undo after another installer's runtimes were taken over: what the files say again is not ours to see gone."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.options import RestartMode
from installer.decide.rows import Holdings
from installer.decide.steps import Reload
from installer.decide.undo import plan_undo
from tests.decide.engines.configs import NVIDIA
from tests.decide.golden import Case, installed, undo_facts
from tests.decide.serving import served

CONFIG = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
options.BinaryName = "{NVIDIA}"
"""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """Return a node whose config says the first of our runtimes already."""
    config = tmp_path / "before/etc/containerd/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    return Case("containerd", tmp_path, {"engine_version": "1.7.24", "set_as_default": True})


def _undone(case: Case, *, finished: bool) -> list[Reload]:
    plan, disk = installed(case, case.before, Holdings())
    assert plan.settled is not None
    facts = undo_facts(case, disk, replace(plan.settled, finished=finished))
    engine = facts.engines[0]
    serving = served({"nvidia": NVIDIA, "runc": ""}, "nvidia")
    facts = replace(facts, engines=(replace(engine, serving=serving, stopped=False),))
    undo = plan_undo(facts, replace(case.options, restart_mode=RestartMode.AUTO))
    return [step for step in undo.steps if isinstance(step, Reload)]


@pytest.mark.parametrize("finished", [True, False])
def test_what_the_restored_file_says_may_stay(case: Case, *, finished: bool) -> None:
    (reload,) = _undone(case, finished=finished)

    assert [(entry.name, entry.binary) for entry in reload.present] == [("nvidia", PurePosixPath(NVIDIA))]
    assert [entry.name for entry in reload.absent] == ["nvidia-cdi", "nvidia-legacy"]


def test_an_engine_whose_file_says_all_of_it_again_still_reads_it(case: Case) -> None:
    config = case.path / "before/etc/containerd/config.toml"
    others = CONFIG.partition("runtimes.nvidia]")[2]
    for mode in ("cdi", "legacy"):
        head = f'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-{mode}]'
        config.write_text(f"{config.read_text()}{head}{others.replace(NVIDIA, f'{NVIDIA}.{mode}')}")

    (reload,) = _undone(case, finished=True)

    assert [entry.name for entry in reload.present] == ["nvidia", "nvidia-cdi", "nvidia-legacy"]
    assert reload.absent == ()


def test_an_engine_in_whose_files_nothing_was_written_is_left_alone(case: Case) -> None:
    plan, disk = installed(case, case.before, Holdings())
    assert plan.settled is not None
    settled = replace(plan.settled, configs=())
    facts = undo_facts(case, disk, settled)
    facts = replace(facts, engines=(replace(facts.engines[0], stopped=False),))

    undo = plan_undo(facts, replace(case.options, restart_mode=RestartMode.AUTO))

    assert [step for step in undo.steps if isinstance(step, Reload)] == []
