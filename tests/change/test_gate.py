"""The gate: a text is written only if the engine has with it what it has without, and what is ours."""

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install, plan_undo
from installer.change.references import find_last_references
from installer.config_text import Syntax
from installer.engines import ENGINES
from installer.engines.config_texts import Texts, predict_from_texts
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, Flags, Runtime, find_disturbances
from installer.model.engine import EngineState
from installer.model.facts import Facts, Record
from installer.model.files import File
from installer.model.options import RestartMode
from installer.model.steps import Neighbour, Reload
from tests.change.golden import (
    Case,
    Disk,
    accepted,
    binaries_of,
    case_of,
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
WITHOUT_DROP_IN = replace(CONTAINERD, said={"engine_version": "2.1.9"})
WITH_DROP_IN = replace(CONTAINERD, said={"drop_in": str(DROP_IN), "engine_version": "2.1.9"})
DOCKER = Own("docker", NOWHERE, {}, DAEMON_JSON, '{"log-level": "warn"}\n')
CRIO_CONF, WARNS = PurePosixPath("/etc/crio/crio.conf"), '[crio.runtime]\nlog_level = "warn"\n'
CRIO = Own("crio", NOWHERE, {"engine_version": "1.37.0"}, CRIO_CONF, WARNS)
OURS = binaries_of(CONTAINERD.options).keys()
RESTARTS = replace(CONTAINERD.options, restart_mode=RestartMode.AUTO)


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


def check_kept(case: Case, facts: Facts, reason: str) -> Plan:
    """See that an undo leaves all of ours in the engine, and says why; return its plan."""
    back = plan_undo(facts, case.options)

    title = ENGINES[case.engine].title
    assert [error.problem for error in back.needed] == [f"remove the runtime nvidia from {title} ({reason})"]
    assert final_of(back).engines[0].runtimes.keys() == OURS
    assert final_of(back).toolkit == facts.record.toolkit
    return back


def flips_the_driver(engine: EngineState, texts: Texts) -> EffectiveConfig:
    said = predict_from_texts(engine, texts)
    other = Runtime("", {"options": {"SystemdCgroup": "nvidia" not in said.handlers}})
    return replace(said, rest_digest="told", handlers={**said.handlers, "runc": other})


def knows_nothing_of_us(engine: EngineState, texts: Texts) -> EffectiveConfig:
    said = predict_from_texts(engine, texts)
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
    with pytest.raises(InstallerError, match=why):
        accepted(plan_install(CONTAINERD.facts(), CONTAINERD.options, program))


def test_what_the_program_says_counts_more_than_a_doubt_of_the_texts() -> None:
    case = case_of("containerd", "ubuntu-2004-schema-1-left-over-on-containerd-2")

    # As containerd 2.3.4 and 2.4.0-beta.0 were seen to: a file of schema 1, one without a version or with
    # ``root`` alone. 2.4 after the beta also takes imports that are newer than the root file; 2.3.4 does not start.
    def reads_schema_1(engine: EngineState, texts: Texts) -> EffectiveConfig:
        return replace(predict_from_texts(engine, texts), rest_digest="told")

    assert writes_of(plan_install(case.facts(), case.options, reads_schema_1))


@pytest.mark.parametrize(
    ("case", "old", "new"),
    [
        (CONTAINERD, 'name = "runc"', 'name = "nvidia"'),
        (DOCKER, '"log-level"', '"default-runtime": "nvidia", "log-level"'),
    ],
    ids=["containerd", "docker"],
)
def test_an_owner_who_made_ours_the_default_keeps_all_of_ours_and_may_put_his_config_right(
    case: Own, old: str, new: str
) -> None:
    _, disk, held = installed(case)
    changed = edited(disk, case.config, old, new)

    back = check_kept(case, undo_facts(case, changed, held), f"it was made the default in {case.config}")

    assert written(changed, back) == changed
    assert final_of(back).configs == held.configs
    full, right = undone(case, disk, final_of(back))
    assert (full.final, right) == (None, case.before)


def test_a_default_that_we_gave_goes_though_the_engine_cannot_do_without_a_runtime_of_ours() -> None:
    case = replace(DOCKER, said={"set_as_default": True})
    facts = undoing(case, next_flags=Flags("nvidia"))

    back = check_kept(case, facts, "its unit starts it with --default-runtime nvidia")

    said = json.loads(content_of(written({**facts.contents}, back), DAEMON_JSON))
    assert said["runtimes"].keys() == OURS
    assert "default-runtime" not in said


def test_keys_that_a_migration_has_moved_are_ours_still() -> None:
    _, disk, held = installed(CONTAINERD)
    moved = edited(disk, CONFIG, "version = 2", "version = 3")
    text = content_of(moved, CONFIG).replace("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")

    back, left = undone(CONTAINERD, {CONFIG: File(text.encode())}, held)

    assert "nvidia" not in content_of(left, CONFIG)
    assert back.final is None


@pytest.mark.parametrize(
    "spelled",
    [
        PROGRAM.replace("nvidia/", "nvidia//", 1),
        PROGRAM.replace("nvidia", "nvidia/../nvidia", 1),
        "/usr/local/nvidia/.toolkit-installer/versions/0/nvidia-container-runtime",
    ],
)
def test_the_toolkit_stays_while_another_file_names_it_however_it_is_spelled(spelled: str) -> None:
    facts = undoing(CONTAINERD)
    other = File(json.dumps({"runtimes": {"gpu": {"path": spelled}}}).encode())

    back = plan_undo(replace(facts, contents={**facts.contents, DAEMON_JSON: other}), CONTAINERD.options)

    assert [error.problem for error in back.needed] == [f"remove the toolkit ({DAEMON_JSON} names {spelled})"]
    assert final_of(back).toolkit == facts.record.toolkit
    assert [row.name for row in final_of(back).engines] == ["containerd"], "it is asked again"


KATA = {"runc": "", "kata": "/usr/bin/kata"}


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        (served(KATA, "runc"), ()),
        (served({"runc": ""}, "runc"), ("kata",)),
        (served(KATA, "kata"), ("the default",)),
    ],
    ids=["as before", "one is gone", "the default"],
)
def test_after_a_reload_the_runtimes_of_others_are_looked_at(
    after: EffectiveConfig, lost: tuple[str, ...]
) -> None:
    before = served(KATA, "runc")
    others = tuple(Neighbour(name, (handler,)) for name, handler in before.handlers.items())

    reload = Reload(ENGINES["containerd"], (), others=others, defaults=frozenset({"runc"}))
    assert reload.lost_in(after) == lost


RUNC, DEFAULT = served({"runc": ""}, "runc"), served({"default": ""}, "default")
OF_OURS = served({"nvidia": PROGRAM}, "nvidia")
BROKEN = EffectiveConfig({}, "", broken="no such file")
# CRI-O's program says nothing else of a config whose default runtime is not defined.
REFUSED = EffectiveConfig({}, "", undefined="nvidia")
ANOTHER = "its default runtime would be kata in the place of runc"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (RUNC, BROKEN, ["it would not start: no such file"]),
        (RUNC, served({"nvidia": "/x"}, "runc"), ["the runtime runc would be lost"]),
        (RUNC, served({"runc": "", "kata": ""}, "kata"), ["the runtime kata would appear", ANOTHER]),
        (RUNC, replace(RUNC, undefined="crun"), ["its default runtime crun would not be defined"]),
        (RUNC, served({"runc": "", "nvidia": "/x"}, "nvidia"), []),
        (
            replace(RUNC, rest_digest="a"),
            replace(RUNC, rest_digest="b"),
            ["settings besides the runtimes would change"],
        ),
        (DEFAULT, OF_OURS, ["the runtime default would be lost"]),  # no name serves it any more
        (OF_OURS, DEFAULT, []),  # one that appears with ours gone
        (REFUSED, served({"runc": "/b", "nvidia": "/t"}, "nvidia"), []),  # healed
        (REFUSED, BROKEN, ["it would not start: no such file"]),
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

    with pytest.raises(InstallerError, match="the runtime mine would be lost"):
        installed(WITHOUT_DROP_IN, disk, held)


def test_each_file_is_held_in_its_own_syntax_also_where_nothing_of_ours_is_left_in_it() -> None:
    plan, disk, held = installed(WITH_DROP_IN)

    moved, _, _ = installed(WITHOUT_DROP_IN, disk, held)

    rows = (*moved.in_progress.configs, *plan.in_progress.configs)
    assert {row.syntax for row in rows} == {Syntax.TOML}
    assert DROP_IN in {row.path for row in moved.in_progress.configs}


@pytest.mark.parametrize("case", [DOCKER, CRIO], ids=["docker", "crio"])
def test_a_default_that_a_flag_makes_keeps_its_runtime(case: Case) -> None:
    back = check_kept(
        case, undoing(case, flags=Flags("nvidia")), "it was started with --default-runtime nvidia"
    )

    texts = [step.after for step in writes_of(back) if step.after]
    assert [text for text in texts if b"nvidia-container-runtime" in text.content] == texts
    assert not [text for text in texts if b"default" in text.content]


def test_a_flag_that_names_a_program_of_the_toolkit_keeps_it() -> None:
    facts = undoing(DOCKER, flags=Flags(runtimes={"gpu": PROGRAM}))

    back = plan_undo(facts, DOCKER.options)

    reason = f"Docker was started with a flag for gpu, which starts {PROGRAM}"
    assert [error.problem for error in back.needed] == [f"remove the toolkit ({reason})"]
    assert final_of(back).toolkit == facts.record.toolkit


@pytest.mark.parametrize(
    ("binaries", "named", "told"),
    [
        ({"nvidia": PROGRAM}, (), True),
        ({"nvidia": "/usr/bin/other"}, (), False),
        ({"nvidia": PROGRAM}, (PROGRAM,), False),
        ({}, (), False),
    ],
    ids=["ours", "of another program", "as the files said before us", "nothing"],
)
def test_what_an_engine_serves_in_the_end_keeps_its_program(
    binaries: dict[str, str], named: tuple[str, ...], *, told: bool
) -> None:
    facts = undoing(CONTAINERD, serving=served({"runc": "", **binaries}, "runc"))
    rows = tuple(replace(row, named=named) for row in facts.record.configs)
    left = replace(facts, record=replace(facts.record, configs=rows), contents={})

    found = [error.problem for error in find_last_references(left, RESTARTS)]

    assert found == [f"remove the toolkit (containerd serves nvidia, which starts {PROGRAM})"] * told


@pytest.mark.parametrize(
    "found",
    [EffectiveConfig({}, "", broken="no such import"), EffectiveConfig({}, "runc", undefined="runc")],
    ids=["refused", "without its default"],
)
@pytest.mark.parametrize("case", [CONTAINERD, CRIO], ids=["containerd", "crio"])
def test_an_undo_does_not_restart_into_what_the_engine_refuses(case: Case, found: EffectiveConfig) -> None:
    facts = undoing(case, serving=served(binaries_of(case.options), "runc"))

    back = plan_undo(facts, RESTARTS, lambda *_: found)

    assert back.steps == ()
    assert "it would not start again" in back.needed[0].problem
    assert (final_of(back).engines, final_of(back).configs) == (facts.record.engines, facts.record.configs)
    assert plan_undo(undoing(case, stopped=True), RESTARTS, lambda *_: found).final is None


def test_a_text_that_was_to_pass_is_undone_also_where_it_was_edited_since() -> None:
    serving = served({"runc": "runc", **binaries_of(DOCKER.options)}, "runc")
    back = plan_undo(undoing(DOCKER, serving=serving, version=(20, 10, 24)), RESTARTS)
    passing = {DAEMON_JSON: writes_of(back)[0].after}
    assert '"default-runtime": "runc"' in content_of(passing, DAEMON_JSON)

    again, left = undone(DOCKER, edited(passing, DAEMON_JSON, '"warn"', '"info"'), back.in_progress)

    assert content_of(left, DAEMON_JSON) == '{"log-level": "info"}\n'
    assert again.notes == ()


def test_runtimes_of_an_earlier_run_that_the_last_one_did_not_name_are_seen_to_go() -> None:
    facts = undoing(DOCKER, serving=served({"runc": "runc", **binaries_of(DOCKER.options)}, "runc"))
    row = replace(facts.record.engines[0], runtimes={"nvidia": PurePosixPath(PROGRAM)})

    back = plan_undo(replace(facts, record=replace(facts.record, engines=(row,))), RESTARTS)

    assert {entry.name for reload in reloads_of(back) for entry in reload.absent} == OURS


def test_an_engine_whose_unit_would_not_start_it_again_is_not_restarted() -> None:
    refused = InstallerError("restart containerd (no)", remedy="correct that", code="unit-failed")

    plan = plan_install(with_engines(CONTAINERD.facts(), not_restarted=refused, serving=RUNC), RESTARTS)

    assert refused in plan.obstacles
    held = undo_facts(CONTAINERD, written(CONTAINERD.before, plan), final_of(plan))
    for stopped in (False, True):
        back = plan_undo(with_engines(held, not_restarted=refused, stopped=stopped), RESTARTS)
        assert [error.problem for error in back.needed] == ([] if stopped else [refused.problem])
        assert written(dict(held.contents), back) == CONTAINERD.before, "it is without us in any case"
        assert reloads_of(back) == []


def test_a_default_that_ours_define_is_healed_and_no_undo_breaks_it_again() -> None:
    case = replace(DOCKER, text='{\n  "default-runtime": "nvidia",\n  "debug": true\n}\n')
    facts = case.facts()

    plan = accepted(plan_install(facts, case.options, predict_from_texts))

    after = written(case.before, plan)
    assert predict_from_texts(facts.engines[0], after).fatal == ""
    back = plan_undo(undo_facts(case, after, final_of(plan)), case.options, predict_from_texts)
    assert predict_from_texts(facts.engines[0], written(after, back)).fatal == ""
    assert [row.name for row in final_of(back).engines] == ["docker"]


def test_a_refused_undo_names_what_it_would_change_now_and_what_it_would_change_without_our_drop_in() -> None:
    facts = undoing(WITH_DROP_IN, serving=served({"runc": "", **binaries_of(WITH_DROP_IN.options)}, "runc"))
    present = facts.contents[CONFIG]

    def reads_the_drop_in(_: EngineState, texts: Texts) -> EffectiveConfig:
        if texts.get(DROP_IN) is not None:
            return served({"runc": "", "kata": "", "mine": "", **binaries_of(WITH_DROP_IN.options)}, "runc")
        if texts[CONFIG] == present:
            return served({"runc": "", "crun": "", "mine": ""}, "runc")
        return served({"runc": ""}, "runc")

    back = plan_undo(facts, WITH_DROP_IN.options, reads_the_drop_in)

    lost = [f"the runtime {name} would be lost" for name in ("kata", "mine", "crun")]
    assert f"({'; '.join(lost)})" in back.needed[0].problem
    assert writes_of(back) == []
