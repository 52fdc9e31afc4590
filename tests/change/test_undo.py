"""An undo: what containers or the engine still need stays, what was taken over comes back, and who is restarted."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_rollback, plan_undo
from installer.config_text import leaves
from installer.engines import ENGINES
from installer.engines.config_texts import Texts, predict_from_texts, tree_of
from installer.errors import InstallerError, Option, Remedy
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState
from installer.model.facts import Container, ContainerFacts, Facts, Pending, Record
from installer.model.files import File, Kind, Symlink
from installer.model.options import InUse, Options, RestartMode
from installer.model.steps import (
    InstallVersion,
    ProveUnused,
    Reload,
    RemoveDirectory,
    RemoveVersion,
    SwitchToolkit,
)
from tests.change.golden import (
    Case,
    Disk,
    binaries_of,
    case_of,
    cases,
    final_of,
    installed,
    reloads_of,
    served,
    undo_facts,
    undoing,
    with_engines,
    writes_of,
    written,
)

CONTAINERD, CRIO, DOCKER = case_of("containerd", "kubeadm-tabs"), case_of("crio"), case_of("docker")
OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")


def _auto(options: Options) -> Options:
    return replace(options, restart_mode=RestartMode.AUTO)


def _live(facts: Facts, engine: str) -> Facts:
    """Return the facts of a node where a container of the engine runs on our runtime."""
    return replace(facts, containers=ContainerFacts(_containers(engine)))


def _containers(engine: str) -> tuple[Container, ...]:
    return (Container(engine, "3f6c0d5e8a9b", "train/bert-0", OURS),)


def _defaults(engine: str, disk: Disk) -> Iterator[object]:
    for path, file in sorted(disk.items()):
        for key, value in leaves(tree_of(file, path)):
            if key[-1] == ENGINES[engine].default_key:
                yield path, value


@pytest.mark.parametrize("engine", sorted(name for name in ENGINES if cases(name)))
def test_our_runtime_is_the_default_no_more_and_later_every_byte_comes_back(engine: str) -> None:
    for case in cases(engine):
        if not {"refused", "hook"} & {*case.said}:
            check_undo_in_two(case)


def check_undo_in_two(case: Case) -> None:
    options = replace(case.options, set_as_default=True, in_use=InUse.KEEP)
    try:
        _, disk, held = installed(case, options=options)
    except InstallerError:  # one of the cases in which we cannot be the default
        _, disk, held = installed(case)

    kept = plan_undo(_live(undo_facts(case, disk, held), case.engine), options)

    after = written(disk, kept)
    assert list(_defaults(case.engine, after)) == list(_defaults(case.engine, case.before))
    assert kept.in_use
    assert (final_of(kept).toolkit, final_of(kept).finished) == (held.toolkit, True)
    assert [file for file in after.values() if file and str(OURS).encode() in file.content]
    later = undo_facts(case, after, final_of(kept))
    assert plan_undo(_live(later, case.engine), options).steps == ()
    full = plan_undo(later, options)
    assert (full.final, written(after, full)) == (None, case.before)


@pytest.mark.parametrize("default", [True, False], ids=["ours is the default", "ours is not"])
def test_an_undo_expects_no_runtime_whose_program_the_owner_has_deleted(*, default: bool) -> None:
    options = _auto(replace(CRIO.options, set_as_default=default, in_use=InUse.KEEP))
    _, disk, held = installed(CRIO, options=options)
    binaries = binaries_of(options)
    serving = served({"crun": "", "runc": "", **binaries}, "nvidia" if default else "crun")
    programs = frozenset(map(PurePosixPath, binaries.values()))
    facts = with_engines(undo_facts(CRIO, disk, held), serving=serving, missing_programs=programs)

    plan = plan_undo(_live(facts, "crio"), options)

    # CRI-O leaves such a runtime out at its start, so that a restart that waits for it fails.
    assert [reload.present for reload in reloads_of(plan)] == [()] * default
    assert [error.code for error in plan.needed] == []
    assert plan.in_use


REFUSED = InstallerError("restart it (no)", remedy="correct that, then run again", code="unit-failed")


@pytest.mark.parametrize("engine", sorted(name for name in ENGINES if cases(name)))
def test_a_refused_undo_takes_ours_out_and_the_next_finishes_it(engine: str) -> None:
    for case in cases(engine):
        named_before = any(str(OURS).encode() in file.content for file in case.before.values() if file)
        restarts = ENGINES[engine].is_restarted
        if restarts and not (named_before or {"refused", "hook"} & {*case.said}):
            check_refused_undo(case)


def check_refused_undo(case: Case) -> None:
    options = _auto(case.options)
    plan, disk, held = installed(case)
    serving = served({"runc": "", **binaries_of(options)}, "runc")
    now = with_engines(undo_facts(case, disk, held), serving=serving, not_restarted=REFUSED)

    refused = plan_undo(now, options)

    left = final_of(refused)
    assert [error.problem for error in refused.needed] == [REFUSED.problem], case.path.name
    assert (written(disk, refused), reloads_of(refused)) == (case.before, [])
    assert (left.toolkit, [row.pending for row in left.engines]) == (
        held.toolkit,
        [Pending.RESTART_AFTER_UNDO],
    )
    again = with_engines(undo_facts(case, case.before, left), serving=serving, not_restarted=REFUSED)
    assert writes_of(plan_undo(again, options)) == []
    assert final_of(plan_undo(again, options)).configs == left.configs
    restarted = with_engines(again, serving=served({"runc": ""}, "runc"), not_restarted=None)
    done = plan_undo(restarted, options)
    assert (done.final, writes_of(done), reloads_of(done)) == (None, [], [])
    by_us = plan_undo(with_engines(again, not_restarted=None), options)
    assert (by_us.final, writes_of(by_us), len(reloads_of(by_us))) == (None, [], 1)
    installed_again, _, _ = installed(case, case.before, left)
    assert {step.path: step.after for step in writes_of(installed_again)} == {
        step.path: step.after for step in writes_of(plan)
    }


@pytest.mark.parametrize(
    ("engine", "name", "files"),
    [
        ("containerd", "kubeadm-tabs", "/etc/containerd/config.toml is without us, "),
        (
            "containerd",
            "site-imports-over-lines-without-trailing-comma",
            "/etc/containerd/conf.d/99-nvidia.toml is removed, /etc/containerd/config.toml is without us, ",
        ),
        (
            "containerd",
            "arch-package-absent-and-a-drop-in-asked-for",
            "/etc/containerd/conf.d/99-nvidia.toml and /etc/containerd/config.toml are removed, ",
        ),
    ],
    ids=["written", "removed and written", "all removed"],
)
def test_a_refused_undo_tells_what_has_become_of_each_file(engine: str, name: str, files: str) -> None:
    case = case_of(engine, name)
    _, disk, held = installed(case)
    options = _auto(case.options)
    serving = served({"runc": "", **binaries_of(options)}, "runc")

    plan = plan_undo(
        with_engines(undo_facts(case, disk, held), serving=serving, not_restarted=REFUSED), options
    )

    (refusal,) = plan.needed
    assert refusal.remedy == (
        f"{REFUSED.remedy}; {files}and the toolkit stays until containerd has read that"
    )


def test_an_undo_that_others_changes_forbid_names_the_flag_for_them_as_an_option() -> None:
    def ask(engine: EngineState, texts: Texts) -> EffectiveConfig:
        return replace(predict_from_texts(engine, texts), is_printed=True, rest_digest="said")

    options = _auto(CONTAINERD.options)
    serving = served({"runc": "", "kata": "", **binaries_of(options)}, "runc")

    plan = plan_undo(undoing(CONTAINERD, serving=serving), options, ask)

    (refusal,) = plan.needed
    assert "takes away the runtime kata" in refusal.problem
    assert isinstance(refusal.remedy, Remedy), "each entry point spells options by itself"
    assert Option("accept-pending") in refusal.remedy.parts


@pytest.mark.parametrize("serves_ours", [True, False], ids=["restarted", "not restarted"])
def test_an_undo_names_the_edited_inputs_that_its_restart_brings_into_force(*, serves_ours: bool) -> None:
    case = case_of("microk8s", "as-the-snap-ships-it")
    registries = PurePosixPath("/var/snap/microk8s/current/args/certs.d/docker.io/hosts.toml")
    binaries = binaries_of(case.options) if serves_ours else {}
    serving = served({"runc": "", **binaries}, "runc")

    plan = plan_undo(undoing(case, serving=serving, edited_inputs=(registries,)), _auto(case.options))

    note = f"the restart of MicroK8s brings into force what was changed after its start in {registries}"
    assert len(reloads_of(plan)) == serves_ours
    assert (note in plan.notes) is serves_ours


def _in_use(case: Case, version: tuple[int, ...], low_level: str | None = "/usr/sbin/runc") -> Facts:
    facts = undoing(case, version=version, serving=served(binaries_of(case.options), ""))
    assert facts.record.toolkit is not None
    number = facts.record.toolkit.version
    runs = ContainerFacts(_containers(case.engine), low_level=PurePosixPath(low_level) if low_level else None)
    link = f".toolkit-installer/versions/{number}"
    there = replace(facts.toolkit, kind=Kind.LINK, link=link, versions={number: {}})
    return replace(facts, containers=runs, toolkit=there)


@pytest.mark.parametrize(
    ("case", "version", "stays"),
    [
        pytest.param(DOCKER, (28, 5), False, id="Docker"),
        pytest.param(CONTAINERD, (2, 1), True, id="containerd 2.x, for exec"),
        pytest.param(CRIO, (1, 31), True, id="CRI-O, for stop and remove"),
    ],
)
def test_force_leaves_links_to_the_low_level_runtime_and_handlers_where_they_are_needed(
    case: Case, version: tuple[int, ...], *, stays: bool
) -> None:
    plan = plan_undo(_in_use(case, version), _auto(replace(case.options, in_use=InUse.FORCE)))

    stand_in = next(step for step in plan.steps if isinstance(step, InstallVersion))
    programs = (f"nvidia-container-runtime{mode}" for mode in ("", ".cdi", ".legacy"))
    assert stand_in.files == tuple(Symlink(PurePosixPath(name), "/usr/sbin/runc") for name in programs)
    order = [
        type(step) for step in plan.steps if isinstance(step, InstallVersion | SwitchToolkit | RemoveVersion)
    ]
    assert order == [InstallVersion, SwitchToolkit, RemoveVersion]
    assert [row.name for row in final_of(plan).engines] == [case.engine]  # to undo what is put back
    left = {step.path: step.after for step in writes_of(plan)}
    assert any(str(OURS).encode() in file.content for file in left.values() if file) == stays


def test_force_without_any_low_level_runtime_is_refused() -> None:
    facts = _in_use(CONTAINERD, (1, 7), low_level=None)

    plan = plan_undo(facts, _auto(replace(CONTAINERD.options, in_use=InUse.FORCE)))

    assert "neither runc nor crun was found" in plan.obstacles[0].problem


@pytest.mark.parametrize(
    ("default", "told"), [("nvidia", False), ("runc", True)], ids=["not told before the crash", "told"]
)
def test_what_a_crash_interrupted_is_finished_although_the_file_is_right_already(
    default: str, *, told: bool
) -> None:
    options = _auto(replace(CONTAINERD.options, set_as_default=True, in_use=InUse.KEEP))
    _, disk, held = installed(CONTAINERD, options=options)
    first = plan_undo(_live(undo_facts(CONTAINERD, disk, held), "containerd"), options)
    facts = _live(undo_facts(CONTAINERD, written(disk, first), first.in_progress), "containerd")

    again = plan_undo(with_engines(facts, serving=served(binaries_of(options), default)), options)

    assert bool(reloads_of(again)) is not told


def test_the_payload_goes_only_after_another_look_at_what_runs() -> None:
    facts = replace(_in_use(CONTAINERD, (1, 7)), containers=ContainerFacts())

    kinds = [type(step) for step in plan_undo(facts, _auto(CONTAINERD.options)).steps]

    assert kinds.index(Reload) < kinds.index(ProveUnused) < kinds.index(SwitchToolkit)


def test_directories_that_we_made_go_and_those_above_the_ledger_with_it() -> None:
    facts, drop_ins = undoing(CONTAINERD), PurePosixPath("/etc/containerd/conf.d")
    held = replace(facts.record, directories=(PurePosixPath("/usr/local/nvidia"), drop_ins))

    plan = plan_undo(replace(facts, record=held), CONTAINERD.options)

    assert [step.path for step in plan.steps if isinstance(step, RemoveDirectory)] == [drop_ins]


def test_a_roll_back_leaves_containers_that_have_just_been_started_what_they_need() -> None:
    plan, _, _ = installed(CONTAINERD)

    back = plan_rollback(plan, plan.steps, Record(), _containers("containerd"))

    assert back.steps == ()
    assert back.final == back.in_progress
    assert back.in_use
    assert plan_rollback(plan, plan.steps, Record()).steps


def test_an_undo_leaves_a_microk8s_alone_whose_template_is_gone() -> None:
    case = case_of("microk8s", "as-the-snap-ships-it")
    facts = undoing(case, version=(2, 2), serving=served(binaries_of(case.options), "runc"))
    template = ENGINES["microk8s"].config

    undone = plan_undo(replace(facts, contents={**facts.contents, template: None}), _auto(case.options))

    unit = facts.engines[0].unit
    assert [each.problem for each in undone.needed] == [
        f"restart MicroK8s ({unit} would not start it again: {template} is not there)"
    ]
    assert reloads_of(undone) == []
    assert final_of(undone).configs == facts.record.configs
    assert not plan_undo(facts, _auto(case.options)).needed


# Another installer's runtimes were taken over: what the files say again is not ours to see gone.

THEIRS = str(OURS)
RUNTIMES = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
TYPE = 'runtime_type = "io.containerd.runc.v2"\n'
CONFIG = f'version = 2\n[{RUNTIMES}.runc]\n{TYPE}[{RUNTIMES}.nvidia]\n{TYPE}options.BinaryName = "{THEIRS}"\n'
MORE = "".join(
    f'[{RUNTIMES}.nvidia-{mode}]\n{TYPE}options.BinaryName = "{THEIRS}.{mode}"\n'
    for mode in ("cdi", "legacy")
)
NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")


@pytest.mark.parametrize(
    ("text", "finished", "stays"), [(CONFIG, True, 1), (CONFIG, False, 1), (CONFIG + MORE, True, 3)]
)
def test_what_the_restored_file_says_may_stay(
    tmp_path: Path, text: str, stays: int, *, finished: bool
) -> None:
    config = tmp_path / "before/etc/containerd/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(text)
    case = Case("containerd", tmp_path, {"engine_version": "1.7.24", "set_as_default": True})
    facts = undoing(case, serving=served({"nvidia": THEIRS, "runc": ""}, "nvidia"), stopped=False)
    facts = replace(facts, record=replace(facts.record, finished=finished))

    (reload,) = reloads_of(plan_undo(facts, _auto(case.options)))

    assert tuple(entry.name for entry in reload.present) == NAMES[:stays]
    assert reload.present[0].binary == PurePosixPath(THEIRS)
    assert tuple(entry.name for entry in reload.absent) == NAMES[stays:]
    untouched = replace(facts, record=replace(facts.record, configs=()), originals={})
    assert not reloads_of(plan_undo(with_engines(untouched, serving=None), _auto(case.options)))


TEXTS = {
    "containerd": f"version = 2\n[{RUNTIMES}.runc]\n{TYPE}",
    "docker": "{}\n",
    "crio": '[crio.runtime.runtimes.runc]\nruntime_path = "/usr/sbin/runc"\n',
}


@pytest.mark.parametrize("default", ["nvidia", "runc"])
@pytest.mark.parametrize(
    ("engine", "version"),
    [("containerd", "1.7.24"), ("containerd", "2.1.9"), ("docker", "28.5.2"), ("crio", "1.31.0")],
)
def test_an_engine_that_loses_the_default_we_gave_it_takes_that_up_and_is_not_reloaded_without_need(
    engine: str, version: str, default: str
) -> None:
    """Somebody has made our runtimes start another program since the install."""
    case = Case(engine, Path("/nowhere"), {"engine_version": version, "set_as_default": True})
    before: Disk = {ENGINES[engine].config: File(TEXTS[engine].encode())}
    _, disk, held = installed(case, before)
    repointed = {
        name: file and File(re.sub(rb'"/usr/local/nvidia[^"]*"', b'"/usr/sbin/runc"', file.content))
        for name, file in disk.items()
    }
    runc = "/usr/sbin/runc" if engine == "crio" else ""
    serving = served({**dict.fromkeys(NAMES, "/usr/sbin/runc"), "runc": runc}, default)
    facts = with_engines(undo_facts(case, repointed, held), serving=serving)
    originals = {name: before.get(name) for name in facts.originals}

    plan = plan_undo(replace(facts, originals=originals), _auto(case.options))

    assert writes_of(plan)
    assert len(reloads_of(plan)) == (default == "nvidia")
    for reload in reloads_of(plan):
        assert reload.present == ()
        assert "nvidia" not in reload.defaults
        assert {one.name for one in reload.others} >= {*NAMES}
