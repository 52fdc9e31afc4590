"""The gate: a text is written only if the engine has with it what it has without, and what is ours."""

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install, plan_undo
from installer.config_text import Syntax
from installer.engines import ENGINES
from installer.engines.config_edits import Texts, texts_alone
from installer.errors import InstallerError
from installer.model.engine_spec import EffectiveConfig, Flags, Runtime, find_disturbances
from installer.model.facts import EngineState, Record
from installer.model.files import File
from installer.model.options import RestartMode
from installer.model.steps import Neighbour, Reload, WriteConfig
from tests.change.golden import (
    Case,
    Disk,
    accepted,
    binaries_of,
    cases,
    installed,
    served,
    undo_facts,
    with_engines,
    written,
)

NOWHERE = Path("/nowhere")
CONFIG, DROP_IN = (
    PurePosixPath("/etc/containerd", name) for name in ("config.toml", "conf.d/99-nvidia.toml")
)
DAEMON_JSON = PurePosixPath("/etc/docker/daemon.json")
OLD = 'plugins."io.containerd.grpc.v1.cri".containerd'
TOOLKIT = "/usr/local/nvidia/toolkit"
PROGRAM = f"{TOOLKIT}/nvidia-container-runtime"


class Own(Case, frozen=True):
    """A case whose one config is told here."""

    config: PurePosixPath = CONFIG
    text: str = ""

    @property
    def before(self) -> Disk:
        return {self.config: File(self.text.encode())}


TEXT = f"""version = 2
[{OLD}]
  default_runtime_name = "runc"
  [{OLD}.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{OLD}.runtimes.runc.options]
      SystemdCgroup = true
"""
CONTAINERD = Own("containerd", NOWHERE, {}, CONFIG, TEXT)
WITH_DROP_IN = replace(CONTAINERD, said={"drop_in": str(DROP_IN), "engine_version": "2.1.9"})
DOCKER = Own("docker", NOWHERE, {}, DAEMON_JSON, '{"log-level": "warn"}\n')
CRIO = Own(
    *("crio", NOWHERE, {"engine_version": "1.37.0"}, PurePosixPath("/etc/crio/crio.conf")),
    '[crio.runtime]\nlog_level = "warn"\n',
)
OURS = binaries_of(CONTAINERD.options).keys()


def content_of(disk: Disk, path: PurePosixPath) -> str:
    file = disk[path]
    assert file is not None
    return file.content.decode()


def edited(disk: Disk, path: PurePosixPath, old: str, new: str) -> Disk:
    """Return ``disk`` with a text of a file replaced, as an admin would."""
    text = content_of(disk, path)
    assert old in text
    return {**disk, path: File(text.replace(old, new, 1).encode())}


def undone(case: Case, disk: Disk, held: Record) -> tuple[Plan, Disk]:
    back = plan_undo(undo_facts(case, disk, held), case.options)
    return back, written(disk, back)


def flips_the_driver(engine: EngineState, texts: Texts) -> EffectiveConfig:
    said = texts_alone(engine, texts)
    other = Runtime("", {"options": {"SystemdCgroup": "nvidia" not in said.handlers}})
    return replace(said, rest_digest="told", handlers={**said.handlers, "runc": other})


def knows_nothing_of_us(engine: EngineState, texts: Texts) -> EffectiveConfig:
    said = texts_alone(engine, texts)
    others = {name: handler for name, handler in said.handlers.items() if name not in OURS}
    return replace(said, rest_digest="told", handlers=others)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (flips_the_driver, "the runtime runc would have other settings"),
        (knows_nothing_of_us, "the runtime nvidia would not be there"),
    ],
)
def test_a_text_that_changes_what_others_have_or_would_not_serve_us_is_not_written(
    program: Callable[[EngineState, Texts], EffectiveConfig], why: str
) -> None:
    facts = CONTAINERD.facts(CONTAINERD.before, Record(), {})

    with pytest.raises(InstallerError, match=why):
        accepted(plan_install(facts, CONTAINERD.options, program))


def test_what_the_program_says_counts_more_than_a_doubt_of_the_texts() -> None:
    name = "ubuntu-2004-schema-1-left-over-on-containerd-2"
    case = next(one for one in cases("containerd") if one.path.name == name)

    # As containerd 2.3.4 and 2.4.0-beta.0 were seen to: a file of schema 1, one without a version or with
    # ``root`` alone. 2.4 after the beta also takes imports that are newer than the root file; 2.3.4 does not start.
    def reads_schema_1(engine: EngineState, texts: Texts) -> EffectiveConfig:
        return replace(texts_alone(engine, texts), rest_digest="told")

    plan = plan_install(case.facts(case.before, Record(), {}), case.options, reads_schema_1)

    assert [step for step in plan.steps if isinstance(step, WriteConfig)]


@pytest.mark.parametrize(
    ("case", "old", "new"),
    [
        pytest.param(CONTAINERD, 'name = "runc"', 'name = "nvidia"', id="containerd"),
        pytest.param(DOCKER, '"log-level"', '"default-runtime": "nvidia", "log-level"', id="docker"),
    ],
)
def test_an_owner_who_made_ours_the_default_keeps_all_of_ours_and_may_put_his_config_right(
    case: Own, old: str, new: str
) -> None:
    plan, disk, held = installed(case)
    changed = edited(disk, case.config, old, new)

    back, left = undone(case, changed, held)

    title = ENGINES[case.engine].title
    assert [error.problem for error in back.needed] == [
        f"remove the runtime nvidia from {title} (it was made the default in {case.config})"
    ]
    assert left == changed
    assert back.final is not None
    assert (back.final.toolkit, back.final.configs) == (held.toolkit, held.configs)
    assert {*back.final.engines[0].runtimes} == OURS
    full, right = undone(case, disk, back.final)
    assert (full.final, right) == (None, case.before)
    assert plan.final is held


def test_a_default_that_we_gave_goes_though_the_engine_cannot_do_without_a_runtime_of_ours() -> None:
    case = replace(DOCKER, said={"set_as_default": True})
    _, disk, held = installed(case)
    facts = with_engines(undo_facts(case, disk, held), next_flags=Flags("nvidia"))

    back = plan_undo(facts, case.options)

    said = json.loads(content_of(written(disk, back), DAEMON_JSON))
    assert said["runtimes"].keys() == OURS
    assert "default-runtime" not in said
    assert [error.problem for error in back.needed] == [
        "remove the runtime nvidia from Docker (its unit starts it with --default-runtime nvidia)"
    ]


def test_keys_that_a_migration_has_moved_are_ours_still() -> None:
    _, disk, held = installed(CONTAINERD)
    moved = content_of(disk, CONFIG).replace("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")

    back, left = undone(
        CONTAINERD, {CONFIG: File(moved.replace("version = 2", "version = 3").encode())}, held
    )

    assert "nvidia" not in content_of(left, CONFIG)
    assert back.final is None


@pytest.mark.parametrize(
    "spelled",
    [
        pytest.param(PROGRAM, id="as it is"),
        pytest.param(PROGRAM.replace("nvidia/", "nvidia//", 1), id="two slashes"),
        pytest.param(PROGRAM.replace("nvidia", "nvidia/../nvidia", 1), id="two dots"),
        pytest.param(
            "/usr/local/nvidia/.toolkit-installer/versions/0/nvidia-container-runtime", id="behind the link"
        ),
    ],
)
def test_the_toolkit_stays_while_another_file_names_it_however_it_is_spelled(spelled: str) -> None:
    _, disk, held = installed(CONTAINERD)
    facts = undo_facts(CONTAINERD, disk, held)
    other = File(json.dumps({"runtimes": {"gpu": {"path": spelled}}}).encode())

    back = plan_undo(replace(facts, contents={**facts.contents, DAEMON_JSON: other}), CONTAINERD.options)

    assert [error.problem for error in back.needed] == [f"remove the toolkit ({DAEMON_JSON} names {spelled})"]
    assert back.final is not None
    assert back.final.toolkit == held.toolkit
    assert [row.name for row in back.final.engines] == ["containerd"], "it is asked again"


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        pytest.param(served({"runc": "", "kata": "/usr/bin/kata"}, "runc"), (), id="as before"),
        pytest.param(served({"runc": ""}, "runc"), ("kata",), id="one is gone"),
        pytest.param(
            served({"runc": "", "kata": "/usr/bin/kata"}, "kata"), ("the default",), id="the default"
        ),
    ],
)
def test_after_a_reload_the_runtimes_of_others_are_looked_at(
    after: EffectiveConfig, lost: tuple[str, ...]
) -> None:
    before = served({"runc": "", "kata": "/usr/bin/kata"}, "runc")
    others = tuple(Neighbour(name, (handler,)) for name, handler in before.handlers.items())

    assert Reload("containerd", (), others=others, defaults=frozenset({"runc"})).lost_in(after) == lost


RUNC = served({"runc": ""}, "runc")
OF_OURS = served({"nvidia": PROGRAM}, "nvidia")
BROKEN = EffectiveConfig({}, "", broken="no such file")
# CRI-O's program says nothing else of a config whose default runtime is not defined.
REFUSED = EffectiveConfig({}, "", undefined="nvidia")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        pytest.param(RUNC, BROKEN, ["it would not start: no such file"], id="broken"),
        pytest.param(RUNC, served({"nvidia": "/x"}, "runc"), ["the runtime runc would be lost"], id="lost"),
        pytest.param(
            *(RUNC, served({"runc": "", "kata": ""}, "kata")),
            ["the runtime kata would appear", "its default runtime would be kata in the place of runc"],
            id="another default",
        ),
        pytest.param(
            *(RUNC, replace(RUNC, undefined="crun")),
            ["its default runtime crun would not be defined"],
            id="a default that is gone",
        ),
        pytest.param(RUNC, served({"runc": "", "nvidia": "/x"}, "nvidia"), [], id="ours, and the default"),
        pytest.param(
            *(replace(RUNC, rest_digest="a"), replace(RUNC, rest_digest="b")),
            ["settings besides the runtimes would change"],
            id="the rest",
        ),
        pytest.param(
            *(served({"default": ""}, "default"), OF_OURS, ["the runtime default would be lost"]),
            id="a default that no name serves any more",
        ),
        pytest.param(OF_OURS, served({"default": ""}, "default"), [], id="one that appears with ours gone"),
        pytest.param(REFUSED, served({"runc": "/b", "nvidia": "/t"}, "nvidia"), [], id="healed"),
        pytest.param(REFUSED, BROKEN, ["it would not start: no such file"], id="broken otherwise"),
    ],
)
def test_what_others_would_notice_is_told_in_words(
    before: EffectiveConfig, after: EffectiveConfig, said: list[str]
) -> None:
    assert [*find_disturbances(before, after, OURS)] == said


def test_what_others_put_into_a_drop_in_of_ours_is_not_lost_with_it() -> None:
    _, disk, held = installed(WITH_DROP_IN)
    mine = f'\n[{OLD}.runtimes.mine]\nruntime_type = "io.containerd.runc.v2"\n'
    disk[DROP_IN] = File((content_of(disk, DROP_IN) + mine).encode())
    without = replace(WITH_DROP_IN, said={"engine_version": "2.1.9"})

    with pytest.raises(InstallerError, match="the runtime mine would be lost"):
        installed(without, disk, held)


def test_each_file_is_held_in_its_own_syntax_also_where_nothing_of_ours_is_left_in_it() -> None:
    plan, disk, held = installed(WITH_DROP_IN)

    moved, _, _ = installed(replace(WITH_DROP_IN, said={"engine_version": "2.1.9"}), disk, held)

    rows = (*moved.in_progress.configs, *plan.in_progress.configs)
    assert {row.syntax for row in rows} == {Syntax.TOML}
    assert DROP_IN in {row.path for row in moved.in_progress.configs}


@pytest.mark.parametrize("case", [DOCKER, CRIO], ids=["docker", "crio"])
def test_a_default_that_a_flag_makes_keeps_its_runtime(case: Case) -> None:
    _, disk, held = installed(case)

    back = plan_undo(with_engines(undo_facts(case, disk, held), flags=Flags("nvidia")), case.options)

    title = ENGINES[case.engine].title
    assert [error.problem for error in back.needed] == [
        f"remove the runtime nvidia from {title} (it was started with --default-runtime nvidia)"
    ]
    assert back.final is not None
    assert {*back.final.engines[0].runtimes} == OURS
    assert back.final.toolkit == held.toolkit
    texts = [step.after for step in back.steps if isinstance(step, WriteConfig) and step.after]
    assert [text for text in texts if b"nvidia-container-runtime" in text.content] == texts
    assert not [text for text in texts if b"default" in text.content]


def test_a_flag_that_names_a_program_of_the_toolkit_keeps_it() -> None:
    _, disk, held = installed(DOCKER)

    back = plan_undo(
        with_engines(undo_facts(DOCKER, disk, held), flags=Flags(runtimes={"gpu": PROGRAM})), DOCKER.options
    )

    reason = f"Docker was started with a flag for gpu, which starts {PROGRAM}"
    assert [error.problem for error in back.needed] == [f"remove the toolkit ({reason})"]
    assert back.final is not None
    assert back.final.toolkit == held.toolkit


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(EffectiveConfig({}, "", broken="no such import"), id="refused"),
        pytest.param(EffectiveConfig({}, "runc", undefined="runc"), id="without its default"),
    ],
)
@pytest.mark.parametrize("case", [CONTAINERD, CRIO], ids=["containerd", "crio"])
def test_an_undo_does_not_restart_into_what_the_engine_refuses(case: Case, found: EffectiveConfig) -> None:
    _, disk, held = installed(case)
    facts = undo_facts(case, disk, held)
    restarts = replace(case.options, restart_mode=RestartMode.AUTO)
    running = with_engines(facts, serving=served(binaries_of(case.options), "runc"))

    back = plan_undo(running, restarts, lambda *_: found)

    assert back.steps == ()
    assert "it would not come up again" in back.needed[0].problem
    assert back.final is not None
    assert (back.final.engines, back.final.configs) == (held.engines, held.configs)
    assert plan_undo(with_engines(facts, stopped=True), restarts, lambda *_: found).final is None


def test_a_text_that_was_to_pass_is_undone_also_where_it_was_edited_since() -> None:
    _, disk, held = installed(DOCKER)
    serving = served({"runc": "runc", **binaries_of(DOCKER.options)}, "runc")
    facts = with_engines(undo_facts(DOCKER, disk, held), serving=serving, version=(20, 10, 24))
    back = plan_undo(facts, replace(DOCKER.options, restart_mode=RestartMode.AUTO))
    passing = next(step.after for step in back.steps if isinstance(step, WriteConfig))
    assert '"default-runtime": "runc"' in content_of({DAEMON_JSON: passing}, DAEMON_JSON)

    again, left = undone(
        DOCKER, edited({DAEMON_JSON: passing}, DAEMON_JSON, '"warn"', '"info"'), back.in_progress
    )

    assert content_of(left, DAEMON_JSON) == '{"log-level": "info"}\n'
    assert again.notes == ()


def test_an_engine_whose_unit_would_not_start_it_again_is_not_restarted() -> None:
    options = replace(CONTAINERD.options, restart_mode=RestartMode.AUTO)
    refused = InstallerError("restart containerd (no)", remedy="correct that", code="unit-failed")
    facts = CONTAINERD.facts(CONTAINERD.before, Record(), {})

    plan = plan_install(with_engines(facts, not_restarted=refused, serving=RUNC), options)

    assert refused in plan.obstacles
    assert plan.final is not None
    held = undo_facts(CONTAINERD, written(CONTAINERD.before, plan), plan.final)
    for stopped in (False, True):
        back = plan_undo(with_engines(held, not_restarted=refused, stopped=stopped), options)
        assert (refused in back.obstacles) is not stopped


def test_a_default_that_ours_define_is_healed_and_no_undo_breaks_it_again() -> None:
    case = replace(DOCKER, text='{\n  "default-runtime": "nvidia",\n  "debug": true\n}\n')
    (engine,) = case.facts(case.before, Record(), {}).engines

    plan = accepted(plan_install(case.facts(case.before, Record(), {}), case.options, texts_alone))

    after = written(case.before, plan)
    assert plan.final is not None
    assert texts_alone(engine, after).fatal == ""
    back = plan_undo(undo_facts(case, after, plan.final), case.options, texts_alone)
    assert texts_alone(engine, written(after, back)).fatal == ""
    assert back.final is not None
    assert [row.name for row in back.final.engines] == ["docker"]
