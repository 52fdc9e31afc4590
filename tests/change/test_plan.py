"""A plan is a sum of parts: what stands in its way, what each step is taken for, and what is held then."""

from pathlib import PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.change.pending import describe_pending
from installer.change.plan import Plan, entries_for, plan_install
from installer.config_text import Syntax, WantedKey
from installer.engines import ENGINES
from installer.engines.config_edits import change_config
from installer.errors import Exit
from installer.model.effective import EffectiveConfig, RuntimeEntry
from installer.model.engine import ProposedFile
from installer.model.facts import EngineRow, Facts, Failure, PayloadFacts, Record, ToolkitFacts, ToolkitRow
from installer.model.files import VERSIONS, Copy, File, Kind, Text
from installer.model.options import Drift, Listen, Options, RestartMode, ToolkitConfig
from installer.model.steps import InstallVersion, Reload, SwitchToolkit, describe
from installer.payload.files import CONFIG
from installer.payload.plan import ROOM_FOR
from tests.change.golden import (
    artifacts,
    binaries_of,
    case_of,
    cases,
    final_of,
    served,
    with_engines,
    written,
)

CASE, DOCKER = case_of("containerd", "kubeadm-tabs"), case_of("docker")
AUTO: Options = replace(CASE.options, restart_mode=RestartMode.AUTO)
OURS = binaries_of(CASE.options)
SERVING = served(OURS, "gpu", systemd_cgroup=True)


def _facts(serving: EffectiveConfig | None = None) -> Facts:
    return with_engines(CASE.facts(), serving=serving)


def _versions(plan: Plan) -> list[InstallVersion]:
    return [step for step in plan.steps if isinstance(step, InstallVersion)]


def test_all_obstacles_are_told_not_the_first() -> None:
    docker, containerd = (
        next(case for case in cases(engine) if case.said.get("refused")).facts()
        for engine in ("docker", "containerd")
    )

    both = replace(
        docker,
        engines=(*docker.engines, *containerd.engines),
        contents={**docker.contents, **containerd.contents},
        payload=PayloadFacts(()),
    )

    plan = plan_install(both, CASE.options)

    engines = ["engine-docker", "engine-containerd"]
    assert [part.id for part in plan.parts if part.obstacles] == [*engines, "toolkit"]
    assert [part.id for part in plan.parts if part.refused] == engines


def test_space_for_two_payloads_is_just_enough() -> None:
    facts = _facts()
    (step,) = _versions(plan_install(facts, CASE.options))
    need = ROOM_FOR * sum(file.size_bytes for file in step.files if isinstance(file, Copy))
    assert need > 0

    def obstacles(free: int) -> list[str]:
        found = replace(facts, payload=PayloadFacts(artifacts(), free_bytes=free))
        return [each.problem for each in plan_install(found, CASE.options).obstacles]

    assert obstacles(need) == []
    assert obstacles(need - 1)
    assert obstacles(1)[0].startswith("install into /usr/local/nvidia (0 KiB are free")


def test_an_admins_edit_of_config_toml_is_part_of_the_version_that_takes_its_place() -> None:
    facts = _facts()
    (first,) = _versions(plan_install(facts, CASE.options))
    (config,) = (file for file in first.files if isinstance(file, Text) and file.path == CONFIG)
    key = "supported-driver-capabilities"
    edited = config.content.replace(key, f'debug = "/var/log/x"\n{key}')
    toolkit = ToolkitFacts(Kind.LINK, f"{VERSIONS}old", config=edited)
    held = Record(toolkit=ToolkitRow("old", None, config.content))

    plan = plan_install(replace(facts, record=held, toolkit=toolkit), CASE.options)

    (second,) = _versions(plan)
    (changed,) = (file for file, before in zip(second.files, first.files, strict=True) if file != before)
    assert isinstance(changed, Text)
    assert changed.path == CONFIG
    assert 'debug = "/var/log/x"' in changed.content
    assert "kept an administrator's edit of config.toml: debug" in plan.notes


@pytest.mark.parametrize(
    ("silent", "first"),
    [
        ({"stopped": True}, "start containerd"),
        ({}, "correct what the log of containerd says"),
        ({"remedy": "run as root"}, "run as root"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_started_or_mended_unless_nothing_is_to_be_proven(
    silent: dict[str, Any], first: str
) -> None:
    facts = with_engines(_facts(), silence_reason="why", **silent)

    (obstacle,), unasked = plan_install(facts, AUTO).obstacles, plan_install(facts, CASE.options)

    assert str(obstacle).startswith("cannot verify that containerd serves our runtimes (why); ")
    assert str(obstacle.remedy).startswith(first)
    assert (unasked.obstacles, unasked.unverified_engines) == ((), ("containerd",))


def test_a_restart_that_is_left_to_its_owner_is_pending_until_the_engine_serves_us() -> None:
    for serving, pending in ((served({"runc": ""}, "runc"), True), (SERVING, False), (None, False)):
        (row,) = final_of(plan_install(_facts(serving), CASE.options)).engines

        assert ("leaves to you" in describe_pending(row)) is pending


def test_a_unit_that_an_undo_has_left_down_stays_in_the_ledger_of_the_next_install() -> None:
    facts = replace(_facts(), units_down={"docker.service": "failed/failed"})

    plan = plan_install(facts, AUTO)

    assert final_of(plan).units_down == ("docker.service",)


def test_the_name_of_a_second_runtime_chooses_the_default_alone() -> None:
    entries = entries_for(Options(runtime_name="nvidia-cdi", set_as_default=True))

    assert [entry.name for entry in entries] == ["nvidia", "nvidia-cdi", "nvidia-legacy"]
    assert [entry.name for entry in entries if entry.default] == ["nvidia-cdi"]


def test_a_reload_is_satisfied_by_what_is_there_and_by_what_is_gone() -> None:
    entry = RuntimeEntry("nvidia", PurePosixPath("/ours"))
    effects = (served({"nvidia": "/ours"}, "runc"), served({"nvidia": "/x"}, "nvidia"), served({}, "nvidia"))

    present, absent = Reload(ENGINES["docker"], (entry,)), Reload(ENGINES["docker"], (), (entry,))

    assert [present.satisfied_by(each) for each in effects] == [True, False, False]
    assert [absent.satisfied_by(each) for each in effects] == [False, True, False]


FILES = {"metrics_textfile": PurePosixPath("/a.prom"), "nfd_features": PurePosixPath("/a")}
WHO_IS_TOLD = {"metrics_listen": Listen(), **FILES}
FAILURE = "verify that containerd serves our runtimes (it serves runc, default runc)"


def _failed() -> Facts:
    """Return the facts of a node on which the plan has failed."""
    facts = _facts(served({}, "runc"))
    return replace(
        facts, record=replace(facts.record, failed=Failure(plan_install(facts, AUTO).digest, FAILURE))
    )


@pytest.mark.parametrize(
    ("options", "engine", "refused"),
    [
        ({}, {}, True),
        ({"restart_mode": RestartMode.WHEN_IDLE, "drift": Drift.REPORT, **WHO_IS_TOLD}, {}, True),
        ({"retry": True}, {}, False),
        ({"timeout_s": 60.0}, {}, False),
        ({}, {"build": "1 2"}, False),
        ({}, {"inputs": "another template"}, False),
        ({"toolkit": ToolkitConfig(accept_volume_mounts=True)}, {}, False),
        ({}, {"serving": SERVING}, False),
    ],
)
def test_what_failed_is_refused_until_something_it_depends_on_changes(
    options: dict[str, Any], engine: dict[str, Any], *, refused: bool
) -> None:
    plan = plan_install(with_engines(_failed(), **engine), replace(AUTO, **options))

    assert any(FAILURE in obstacle.problem for obstacle in plan.obstacles) is refused
    assert final_of(plan).failed is None


def test_an_edited_config_is_a_reason_to_try_again_and_a_failed_roll_back_has_its_own_exit_code() -> None:
    found = _failed()
    edited = {path: file and File(file.content + b"# edited\n") for path, file in found.contents.items()}
    held = replace(found.record, toolkit=ToolkitRow("0" * 16, None, ""), finished=False)

    (obstacle,) = plan_install(replace(found, record=held), AUTO).obstacles

    assert plan_install(replace(found, contents=edited), AUTO).obstacles == ()
    assert obstacle.exit is Exit.UNDO_INCOMPLETE


SOCKET, STATE = PurePosixPath("/s"), PurePosixPath("/now")
DOCKERS = EngineRow("docker", SOCKET, "docker.service", {}, PurePosixPath("/docker"))
ITS = EngineRow("containerd", SOCKET, "containerd.service", {}, PurePosixPath("/before"))


@pytest.mark.parametrize(
    ("observed", "held", "state"),
    [(None, (DOCKERS,), None), (None, (DOCKERS, ITS), ITS.state), (STATE, (DOCKERS, ITS), STATE)],
)
def test_where_its_containers_are_is_seen_or_known_from_before(
    observed: PurePosixPath | None, held: tuple[EngineRow, ...], state: PurePosixPath | None
) -> None:
    facts = with_engines(CASE.facts(), state=observed)
    plan = plan_install(replace(facts, record=Record(engines=held)), CASE.options)

    assert {row.name: row.state for row in final_of(plan).engines}["containerd"] == state
    assert (plan.in_progress.finished, final_of(plan).finished) == (False, True)


def test_a_config_is_held_that_said_what_is_wanted_before_our_install_and_not_since() -> None:
    wanted = ProposedFile(ENGINES["containerd"].config, Syntax.TOML, (WantedKey(("version",), 2),))
    facts = [CASE.facts(held=Record(engines=engines)) for engines in ((), (ITS,))]

    assert [change_config("containerd", wanted, each).row is not None for each in facts] == [True, False]


@pytest.mark.parametrize(
    ("before", "after", "text", "event", "comes_back"),
    [
        (None, "v/1", "point toolkit to v/1", "toolkit link created", True),
        ("v/1", "v/2", "point toolkit to v/2", "toolkit link changed", True),
        ("v/1", "v/1", "point toolkit to v/1", "toolkit link changed", False),
        ("v/1", "", "remove the link toolkit", "toolkit link removed", True),
        ("v/1", None, "restore the toolkit of another installer", "previous toolkit restored", True),
        (None, None, "remove the previous toolkit of another installer", "previous toolkit removed", False),
    ],
)
def test_where_toolkit_points_is_told_and_goes_back(
    before: str | None, after: str | None, text: str, event: str, *, comes_back: bool
) -> None:
    description = describe(SwitchToolkit(before, after))

    assert (description.text, description.event) == (text, event)
    assert description.undo == (SwitchToolkit(after, before) if comes_back else None)


def test_a_config_that_a_later_install_leaves_has_no_row_any_more() -> None:
    case = case_of("containerd", "site-import-on-containerd-1-replaces-the-cri-table")
    imported = PurePosixPath("/etc/containerd/conf.d/10-cri.toml")
    first = plan_install(case.facts(), case.options)
    disk, held = written(case.before, first), final_of(first)
    assert held.config(imported) is not None

    # containerd 2 merges its imports: our keys move from the import to a drop-in of ours.
    second = plan_install(with_engines(case.facts(disk, held), version=(2, 1, 0)), case.options)

    assert written(disk, second)[imported] == case.before[imported]
    assert final_of(second).config(imported) is None, "else a text of ours would be saved as its owner's"
