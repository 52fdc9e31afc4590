"""What stands in the way of a plan, and what a plan tells its owner."""

from pathlib import PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, entries_for, plan_install
from installer.errors import Exit
from installer.model.engine_spec import EffectiveConfig, RuntimeEntry
from installer.model.facts import Facts, Failure, PayloadFacts, Record, ToolkitFacts, ToolkitRow
from installer.model.files import VERSIONS, Copy, Entry, Kind, Text
from installer.model.options import Options, RestartMode, ToolkitConfig
from installer.model.steps import InstallVersion, Reload, SwitchToolkit
from installer.payload.files import CONFIG
from installer.payload.plan import ROOM_FOR
from tests.decide.golden import Case, artifacts, cases
from tests.decide.serving import served

CASE: Case = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")


def _facts(serving: EffectiveConfig | None = None) -> Facts:
    facts = CASE.facts(CASE.before, Record(), {})
    engines = tuple(replace(engine, serving=serving) for engine in facts.engines)
    return replace(facts, engines=engines)


def _versions(plan: Plan) -> list[InstallVersion]:
    return [step for step in plan.steps if isinstance(step, InstallVersion)]


def test_too_little_space_for_two_payloads_stands_in_the_way() -> None:
    facts = replace(_facts(), payload=PayloadFacts(artifacts(), free_bytes=1))

    plan = plan_install(facts, CASE.options)

    (obstacle,) = plan.obstacles
    assert obstacle.problem.startswith("install into /usr/local/nvidia (0 KiB are free")
    assert obstacle.remedy == "free some space there, or choose another --install-dir"


def test_just_enough_space_for_two_payloads_is_enough() -> None:
    facts = _facts()
    (step,) = _versions(plan_install(facts, CASE.options))
    need = ROOM_FOR * sum(file.size_bytes for file in step.files if isinstance(file, Copy))

    assert need > 0
    assert (
        plan_install(
            replace(facts, payload=PayloadFacts(artifacts(), free_bytes=need)), CASE.options
        ).obstacles
        == ()
    )
    assert (
        plan_install(
            replace(facts, payload=PayloadFacts(artifacts(), free_bytes=need - 1)), CASE.options
        ).obstacles
        != ()
    )


def test_a_plan_counts_as_finished_after_its_last_step_and_not_before() -> None:
    plan = plan_install(_facts(), CASE.options)

    assert plan.final is not None
    assert (plan.in_progress.finished, plan.final.finished) == (False, True)


def test_an_admins_edit_of_config_toml_is_part_of_the_version_that_takes_its_place() -> None:
    facts = _facts()
    (first,) = _versions(plan_install(facts, CASE.options))
    (config,) = (file for file in first.files if isinstance(file, Text) and file.path == CONFIG)
    edited = config.content.replace(
        "supported-driver-capabilities", 'debug = "/var/log/x"\nsupported-driver-capabilities'
    )
    held = Record(toolkit=ToolkitRow("old", None, config.content))
    toolkit = ToolkitFacts(Kind.LINK, f"{VERSIONS}old", config=edited)

    plan = plan_install(replace(facts, held=held, toolkit=toolkit), CASE.options)

    (second,) = _versions(plan)
    kept = [file.content for file in second.files if isinstance(file, Text) and file.path == CONFIG]
    assert ['debug = "/var/log/x"' in text for text in kept] == [True]
    assert "kept an administrator's edit of config.toml: debug" in plan.notes
    changed = [file.path for file, before in zip(second.files, first.files, strict=True) if file != before]
    assert changed == [CONFIG]


def test_an_engine_that_does_not_answer_stands_in_the_way_unless_nothing_is_to_be_proven() -> None:
    asked = plan_install(_facts(), replace(CASE.options, restart_mode=RestartMode.AUTO))
    unasked = plan_install(_facts(), CASE.options)

    assert "verify that containerd serves our runtimes" in str(asked.obstacles[0])
    assert unasked.obstacles == ()
    assert unasked.unproven == ("containerd",)


@pytest.mark.parametrize(
    ("silent", "first"),
    [
        pytest.param(
            {"stopped": True},
            "start containerd, name what runs here with --runtime or its socket with --socket, or",
            id="nobody listens",
        ),
        pytest.param(
            {}, "correct what the log of containerd says, or configure it", id="it runs without CRI"
        ),
        pytest.param({"remedy": "run as root"}, "run as root, or configure it", id="it is not for us to ask"),
    ],
)
def test_who_cannot_be_asked_is_started_or_mended(silent: dict[str, Any], first: str) -> None:
    facts = _facts()
    engines = tuple(replace(engine, silence="why", **silent) for engine in facts.engines)

    plan = plan_install(replace(facts, engines=engines), replace(CASE.options, restart_mode=RestartMode.AUTO))

    assert plan.obstacles[0].problem == "verify that containerd serves our runtimes (why)"
    assert plan.obstacles[0].remedy.startswith(first)


def test_an_engine_that_serves_everything_already_is_not_reloaded() -> None:
    options = replace(CASE.options, restart_mode=RestartMode.AUTO)
    binaries = {entry.name: str(entry.binary) for entry in entries_for(options)}

    done = plan_install(_facts(served(binaries, "gpu", systemd_cgroup=True)), options)
    undone = plan_install(_facts(served({}, "runc")), options)

    assert not [step for step in done.steps if isinstance(step, Reload)]
    assert [step for step in undone.steps if isinstance(step, Reload)]


def test_a_damaged_payload_is_installed_anew_and_a_whole_one_is_left_alone() -> None:
    first = plan_install(_facts(), CASE.options)
    version = next(step for step in first.steps if isinstance(step, InstallVersion))
    whole = {file.path: Entry(100, 0o755) for file in version.files}
    toolkit = replace(_facts().toolkit, versions={version.version: whole})

    again = plan_install(replace(_facts(), toolkit=toolkit), CASE.options)

    # The wrappers in ``whole`` have the wrong size.
    assert [step for step in again.steps if isinstance(step, InstallVersion)]
    assert [step for step in first.steps if isinstance(step, SwitchToolkit)]


@pytest.mark.parametrize(
    ("name", "names", "default"),
    [
        pytest.param("nvidia", ["nvidia", "nvidia-cdi", "nvidia-legacy"], "nvidia", id="the standard ones"),
        pytest.param("gpu", ["gpu", "nvidia-cdi", "nvidia-legacy"], "gpu", id="a name of one's own"),
        pytest.param(
            "nvidia-cdi", ["nvidia", "nvidia-cdi", "nvidia-legacy"], "nvidia-cdi", id="only the default"
        ),
    ],
)
def test_a_runtime_name_takes_the_first_place_or_chooses_the_default(
    name: str, names: list[str], default: str
) -> None:
    entries = entries_for(Options(runtime_name=name, set_as_default=True))

    assert [entry.name for entry in entries] == names
    assert [entry.name for entry in entries if entry.default] == [default]


def test_a_reload_is_satisfied_by_what_is_there_and_by_what_is_gone() -> None:
    binary = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    entry = RuntimeEntry("nvidia", binary)
    ours = served({"nvidia": str(binary)}, "runc")
    theirs = served({"nvidia": "/usr/bin/nvidia-container-runtime"}, "nvidia")
    stuck = served({"runc": ""}, "nvidia")

    present, absent = Reload("docker", (entry,)), Reload("docker", (), (entry,))

    assert [present.satisfied_by(each) for each in (ours, theirs, stuck)] == [True, False, False]
    assert [absent.satisfied_by(each) for each in (ours, theirs, stuck)] == [False, True, False]


FAILURE = "verify that containerd serves our runtimes (it serves runc, default runc)"


def _failed(facts: Facts, options: Options) -> Facts:
    """Return the facts of a node on which the plan for ``facts`` has failed."""
    digest = plan_install(facts, options).digest
    return replace(facts, held=replace(facts.held, failed=Failure(digest, FAILURE)))


@pytest.mark.parametrize(
    ("options", "facts", "refused"),
    [
        pytest.param({}, {}, True, id="nothing has changed"),
        pytest.param({"retry": True}, {}, False, id="asked to try again"),
        pytest.param({"timeout_s": 60.0}, {}, False, id="more time"),
        pytest.param({"runtime_name": "gpu2"}, {}, False, id="another name"),
        pytest.param({}, {"build": "1 2"}, False, id="another engine binary"),
        pytest.param({}, {"version": (1, 7, 25)}, False, id="another engine version"),
        pytest.param({"toolkit": ToolkitConfig(accept_volume_mounts=True)}, {}, False, id="another payload"),
        pytest.param({}, {"serving": "ours"}, False, id="the engine serves it by now"),
    ],
)
def test_what_failed_is_refused_until_something_it_depends_on_changes(
    options: dict[str, Any], facts: dict[str, Any], *, refused: bool
) -> None:
    asked = replace(CASE.options, restart_mode=RestartMode.AUTO)
    found = _failed(_facts(served({}, "runc")), asked)
    if facts.get("serving"):
        binaries = {entry.name: str(entry.binary) for entry in entries_for(asked)}
        facts = {"serving": served(binaries, "gpu", systemd_cgroup=True)}
    found = replace(found, engines=tuple(replace(engine, **facts) for engine in found.engines))

    plan = plan_install(found, replace(asked, **options))

    assert any(FAILURE in obstacle.problem for obstacle in plan.obstacles) is refused
    assert plan.final is not None
    assert plan.final.failed is None


def test_a_failure_whose_roll_back_failed_too_is_not_called_as_before() -> None:
    asked = replace(CASE.options, restart_mode=RestartMode.AUTO)
    found = _failed(_facts(served({}, "runc")), asked)
    held = replace(found.held, toolkit=ToolkitRow("0" * 16, None, ""), finished=False)
    found = replace(found, held=held)

    obstacle = next(each for each in plan_install(found, asked).obstacles if FAILURE in each.problem)

    assert obstacle.exit is Exit.UNDO_INCOMPLETE


def test_a_config_that_somebody_edited_is_a_reason_to_try_again() -> None:
    asked = replace(CASE.options, restart_mode=RestartMode.AUTO)
    found = _failed(_facts(served({}, "runc")), asked)
    contents = {
        path: replace(file, content=file.content + b"# edited\n") if file else None
        for path, file in found.contents.items()
    }

    plan = plan_install(replace(found, contents=contents), asked)

    assert plan.obstacles == ()
