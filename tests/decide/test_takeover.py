"""An undo after another installer's runtimes were taken over: what the files say again is not ours to see gone."""

import re
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_undo
from installer.engines import ENGINES
from installer.model.facts import Record
from installer.model.files import File
from installer.model.options import RestartMode
from installer.model.steps import Reload, Step, WriteConfig
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
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    facts = undo_facts(case, disk, replace(plan.final, finished=finished))
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
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    settled = replace(plan.final, configs=())
    facts = undo_facts(case, disk, settled)
    facts = replace(facts, engines=(replace(facts.engines[0], stopped=False),))

    undo = plan_undo(facts, replace(case.options, restart_mode=RestartMode.AUTO))

    assert [step for step in undo.steps if isinstance(step, Reload)] == []


def _repointed(engine: str, version: str, default: str) -> list[Step]:
    """Return the undo of a default runtime of ours that somebody has made to start another program."""
    files = {
        "containerd": ("version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n"
                       'runtime_type = "io.containerd.runc.v2"\n'),
        "docker": "{}\n",
        "crio": '[crio.runtime.runtimes.runc]\nruntime_path = "/usr/sbin/runc"\n',
    }  # fmt: skip
    path = ENGINES[engine].config
    case = Case(engine, Path("/nowhere"), {"engine_version": version, "set_as_default": True})
    plan, disk = installed(case, {path: File(files[engine].encode())}, Record())
    assert plan.final is not None
    repointed = {
        name: file and replace(file, content=re.sub(rb'"/usr/local/nvidia[^"]*"', b'"/usr/sbin/runc"', file.content))
        for name, file in disk.items()
    }  # fmt: skip
    facts = undo_facts(case, repointed, plan.final)
    ours = dict.fromkeys(("nvidia", "nvidia-cdi", "nvidia-legacy"), "/usr/sbin/runc")
    serving = served({**ours, "runc": "/usr/sbin/runc" if engine == "crio" else ""}, default)
    originals = {path: File(files[engine].encode())}
    facts = replace(
        facts,
        engines=tuple(replace(each, serving=serving) for each in facts.engines),
        originals={name: originals.get(name) for name in facts.originals},
    )
    return list(plan_undo(facts, replace(case.options, restart_mode=RestartMode.AUTO)).steps)


VERSIONS = [("containerd", "1.7.24"), ("containerd", "2.1.9"), ("docker", "28.5.2"), ("crio", "1.31.0")]


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_an_engine_that_loses_the_default_we_gave_it_takes_that_up(engine: str, version: str) -> None:
    steps = _repointed(engine, version, "nvidia")

    (reload,) = (step for step in steps if isinstance(step, Reload))
    assert reload.present == ()
    assert "nvidia" not in reload.defaults
    assert {one.name for one in reload.others} >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_an_engine_that_has_its_own_default_already_is_not_reloaded_for_that(
    engine: str, version: str
) -> None:
    steps = _repointed(engine, version, "runc")

    assert [step for step in steps if isinstance(step, WriteConfig)] != []
    assert [step for step in steps if isinstance(step, Reload)] == []
