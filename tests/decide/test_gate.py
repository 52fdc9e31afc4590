"""The gate: a text is written only if the engine has with it what it has without, and what is ours."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, entries_for, plan_install, plan_undo
from installer.config_text import Syntax
from installer.engines import ENGINES
from installer.engines.config_edits import Texts, texts_alone
from installer.errors import InstallerError
from installer.model.engine_spec import EffectiveConfig, Flags, Runtime, find_disturbances
from installer.model.facts import EngineState, Record
from installer.model.files import File
from installer.model.options import RestartMode
from installer.model.steps import Neighbour, Reload, WriteConfig
from tests.decide.golden import Case, Disk, accepted, cases, installed, undo_facts, written
from tests.decide.serving import served

CONTAINERD = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
DOCKER = next(
    case for case in cases("docker") if case.path.name == "minikube-compact-one-line-without-spaces"
)
CONFIG = PurePosixPath("/etc/containerd/config.toml")
DAEMON_JSON = PurePosixPath("/etc/docker/daemon.json")
OLD = 'plugins."io.containerd.grpc.v1.cri".containerd'
CRI = '[plugins."io.containerd.grpc.v1.cri".containerd]'


class Own(Case, frozen=True):
    """A case whose one config is told here."""

    config: PurePosixPath = CONFIG
    text: str = ""

    @property
    def before(self) -> Disk:
        return {self.config: File(self.text.encode())}


NOWHERE = Path("/nowhere")
TEXT = f"""version = 2
{CRI}
  default_runtime_name = "runc"
  [{OLD}.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{OLD}.runtimes.runc.options]
      SystemdCgroup = true
"""
CONTAINERD = Own("containerd", NOWHERE, {}, CONFIG, TEXT)
DOCKER = Own("docker", NOWHERE, {}, DAEMON_JSON, '{"log-level": "warn"}\n')
CRIO = Own(
    "crio",
    NOWHERE,
    {"engine_version": "1.37.0"},
    PurePosixPath("/etc/crio/crio.conf"),
    '[crio.runtime]\nlog_level = "warn"\n',
)
OURS = {entry.name for entry in entries_for(CONTAINERD.options)}
TOOLKIT = "/usr/local/nvidia/toolkit"


def edited(disk: Disk, path: PurePosixPath, *changes: tuple[str, str]) -> Disk:
    """Return ``disk`` with texts of a file replaced, as an admin would."""
    file = disk[path]
    assert file is not None
    text = file.content.decode()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return {**disk, path: File(text.encode(), file.meta)}


def undone(case: Case, disk: Disk, plan: Plan) -> tuple[Plan, Disk]:
    assert plan.final is not None
    back = plan_undo(undo_facts(case, disk, plan.final), case.options)
    return back, written(disk, back)


def test_a_text_that_changes_what_others_have_is_not_written() -> None:
    def flips_the_driver(engine: EngineState, texts: Texts) -> EffectiveConfig:
        said = texts_alone(engine, texts)
        driver = "nvidia" not in said.handlers
        other = Runtime("", {"options": {"SystemdCgroup": driver}})
        return replace(said, rest_digest="told", handlers={**said.handlers, "runc": other})

    with pytest.raises(InstallerError, match="the runtime runc would have other settings"):
        accepted(
            plan_install(
                CONTAINERD.facts(CONTAINERD.before, Record(), {}), CONTAINERD.options, flips_the_driver
            )
        )


def test_a_later_file_that_sets_our_runtime_otherwise_is_named() -> None:
    table = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia'
    said = {"engine_version": "2.1.9", "drop_in": "/etc/containerd/conf.d/99-nvidia.toml"}
    case = Own("containerd", NOWHERE, said, CONFIG, "version = 3\n")
    plan, disk = installed(case, case.before, Record())
    later = f'version = 3\n{table}]\nruntime_type = "r"\n{table}.options]\nBinaryName = "/usr/bin/theirs"\n'
    disk = {**disk, PurePosixPath("/etc/containerd/conf.d/99-nvidiaz.toml"): File(later.encode())}
    assert plan.final is not None
    originals = {row.path: case.before.get(row.path) for row in plan.final.configs}

    with pytest.raises(InstallerError, match=r"in /\S+99-nvidia.toml, .*as asked for") as refused:
        accepted(plan_install(case.facts(disk, plan.final, originals), case.options))

    assert "correct /etc/containerd/conf.d/99-nvidiaz.toml, then" in str(refused.value.remedy)


def test_a_text_with_which_the_engine_would_not_serve_us_is_not_written() -> None:
    def knows_nothing_of_us(engine: EngineState, texts: Texts) -> EffectiveConfig:
        said = texts_alone(engine, texts)
        others = {name: handler for name, handler in said.handlers.items() if name not in OURS}
        return replace(said, rest_digest="told", handlers=others)

    with pytest.raises(InstallerError, match="the runtime nvidia would not be there"):
        accepted(
            plan_install(
                CONTAINERD.facts(CONTAINERD.before, Record(), {}), CONTAINERD.options, knows_nothing_of_us
            )
        )


def test_what_the_program_says_counts_more_than_a_doubt_of_the_texts() -> None:
    case = next(
        one
        for one in cases("containerd")
        if one.path.name == "ubuntu-2004-schema-1-left-over-on-containerd-2"
    )

    # As containerd 2.3.4 and 2.4.0-beta.0 were seen to: a file of schema 1, one without a version or with
    # ``root`` alone. 2.4 after the beta also takes imports that are newer than the root file; 2.3.4 does not start.
    def reads_schema_1(engine: EngineState, texts: Texts) -> EffectiveConfig:
        return replace(texts_alone(engine, texts), rest_digest="told")

    plan = plan_install(case.facts(case.before, Record(), {}), case.options, reads_schema_1)

    assert [step for step in plan.steps if isinstance(step, WriteConfig)]


def test_an_owner_who_made_ours_the_default_keeps_all_of_ours_and_may_put_his_config_right() -> None:
    plan, disk = installed(CONTAINERD, CONTAINERD.before, Record())
    corrected = disk
    disk = edited(disk, CONFIG, ('default_runtime_name = "runc"', 'default_runtime_name = "nvidia"'))

    back, left = undone(CONTAINERD, disk, plan)

    assert [error.problem for error in back.needed] == [
        f"remove the runtime nvidia from containerd (it was made the default in {CONFIG})"
    ]
    assert left == disk
    assert back.final is not None
    assert plan.final is not None
    assert (back.final.toolkit, back.final.configs) == (plan.final.toolkit, plan.final.configs)
    assert {*back.final.engines[0].runtimes} == OURS
    full = plan_undo(undo_facts(CONTAINERD, corrected, back.final), CONTAINERD.options)
    assert written(corrected, full) == CONTAINERD.before
    assert full.final is None


def test_a_default_of_dockers_that_names_ours_keeps_all_of_them() -> None:
    plan, disk = installed(DOCKER, DOCKER.before, Record())
    file = disk[DAEMON_JSON]
    assert file is not None
    tree = json.loads(file.content)
    tree["default-runtime"] = "nvidia"
    disk = {**disk, DAEMON_JSON: File(json.dumps(tree).encode(), file.meta)}

    back, left = undone(DOCKER, disk, plan)

    assert left == disk
    assert back.needed


def test_a_default_that_we_gave_goes_though_the_engine_cannot_do_without_a_runtime_of_ours() -> None:
    case = replace(DOCKER, said={"set_as_default": True})
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    facts = undo_facts(case, disk, plan.final)
    engine = replace(facts.engines[0], next_flags=Flags("nvidia"))

    back = plan_undo(replace(facts, engines=(engine,)), case.options)

    after = written(disk, back)[DAEMON_JSON]
    assert after is not None
    said = json.loads(after.content)
    assert said["runtimes"].keys() == OURS
    assert "default-runtime" not in said
    assert [error.problem for error in back.needed] == [
        "remove the runtime nvidia from Docker (its unit starts it with --default-runtime nvidia)"
    ]


def test_keys_that_a_migration_has_moved_are_ours_still() -> None:
    plan, disk = installed(CONTAINERD, CONTAINERD.before, Record())
    file = disk[CONFIG]
    assert file is not None
    moved = file.content.decode().replace("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
    disk = {**disk, CONFIG: File(moved.replace("version = 2", "version = 3").encode(), file.meta)}

    back, left = undone(CONTAINERD, disk, plan)

    after = left[CONFIG]
    assert after is not None
    assert "nvidia" not in after.content.decode()
    assert back.final is None


def test_what_others_put_into_a_runtime_of_ours_goes_and_is_named() -> None:
    plan, disk = installed(CONTAINERD, CONTAINERD.before, Record())
    file = disk[CONFIG]
    assert file is not None
    header = f"[{OLD}.runtimes.nvidia]"
    assert header in file.content.decode()
    disk = edited(disk, CONFIG, (header, f'{header}\ncni_conf_dir = "/etc/site"'))

    back, left = undone(CONTAINERD, disk, plan)

    after = left[CONFIG]
    assert after is not None
    assert "/etc/site" not in after.content.decode()
    assert "runtimes.nvidia" not in after.content.decode()
    assert [note for note in back.notes if "cni_conf_dir" in note]


def test_the_toolkit_stays_while_another_file_names_it() -> None:
    plan, disk = installed(CONTAINERD, CONTAINERD.before, Record())
    assert plan.final is not None
    facts = undo_facts(CONTAINERD, disk, plan.final)
    other = File(f'{{"runtimes": {{"gpu": {{"path": "{TOOLKIT}/nvidia-container-runtime"}}}}}}'.encode())

    back = plan_undo(replace(facts, contents={**facts.contents, DAEMON_JSON: other}), CONTAINERD.options)

    assert [error.problem for error in back.needed] == [
        f"remove the toolkit ({DAEMON_JSON} names {TOOLKIT}/nvidia-container-runtime)"
    ]
    assert back.final is not None
    assert back.final.toolkit == plan.final.toolkit


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        pytest.param({"runc": "", "kata": "/usr/bin/kata"}, (), id="as before"),
        pytest.param({"runc": ""}, ("kata",), id="one is gone"),
        pytest.param({"runc": "", "kata": "/usr/bin/other"}, ("kata",), id="one is another"),
    ],
)
def test_after_a_reload_the_runtimes_of_others_are_looked_at(
    after: Mapping[str, str], lost: tuple[str, ...]
) -> None:
    before = served({"runc": "", "kata": "/usr/bin/kata"}, "runc")
    others = tuple(Neighbour(name, (handler,)) for name, handler in before.handlers.items())

    found = Reload("containerd", (), others=others, defaults=frozenset({"runc"})).lost_in(
        served(after, "runc")
    )

    assert found == lost


def test_a_default_that_is_another_after_a_reload_is_seen() -> None:
    reload = Reload("containerd", (), defaults=frozenset({"runc"}))

    assert reload.lost_in(served({"runc": "", "kata": ""}, "kata")) == ("the default",)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        pytest.param(
            EffectiveConfig({}, "", broken="no such file"), ["it would not start: no such file"], id="broken"
        ),
        pytest.param(
            served({"nvidia": "/x"}, "runc"), ["the runtime runc would be lost"], id="a runtime is lost"
        ),
        pytest.param(
            served({"runc": "", "kata": ""}, "kata"),
            ["the runtime kata would appear", "its default runtime would be kata in the place of runc"],
            id="another default",
        ),
        pytest.param(served({"runc": "", "nvidia": "/x"}, "nvidia"), [], id="ours, and the default"),
        pytest.param(
            replace(served({"runc": ""}, "runc"), rest_digest="b"),
            ["settings besides the runtimes would change"],
            id="rest",
        ),
    ],
)
def test_what_others_would_notice_is_told_in_words(after: EffectiveConfig, said: list[str]) -> None:
    before = replace(served({"runc": ""}, "runc"), rest_digest="a" if after.rest_digest else "")

    assert [*find_disturbances(before, after, {"nvidia"})] == said


def test_what_others_put_into_a_drop_in_of_ours_is_not_lost_with_it() -> None:
    drop_in = PurePosixPath("/etc/containerd/conf.d/99-nvidia.toml")
    case = Own("containerd", NOWHERE, {"drop_in": str(drop_in), "engine_version": "2.1.9"}, CONFIG, TEXT)
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    mine = f'\n[{OLD}.runtimes.mine]\nruntime_type = "io.containerd.runc.v2"\n'
    file = disk[drop_in]
    assert file is not None
    disk = {**disk, drop_in: File(file.content + mine.encode(), file.meta)}
    without = replace(case, said={"engine_version": "2.1.9"})

    with pytest.raises(InstallerError, match="the runtime mine would be lost"):
        installed(without, disk, plan.final)


def test_an_engine_is_asked_again_while_the_toolkit_is_named() -> None:
    plan, disk = installed(CONTAINERD, CONTAINERD.before, Record())
    assert plan.final is not None
    facts = undo_facts(CONTAINERD, disk, plan.final)
    other = File(f'{{"runtimes": {{"gpu": {{"path": "{TOOLKIT}/nvidia-container-runtime"}}}}}}'.encode())

    back = plan_undo(replace(facts, contents={**facts.contents, DAEMON_JSON: other}), CONTAINERD.options)

    assert back.final is not None
    assert [row.name for row in back.final.engines] == ["containerd"]


@pytest.mark.parametrize(
    "spelled",
    [
        pytest.param("/usr/local/nvidia//toolkit/nvidia-container-runtime", id="two slashes"),
        pytest.param("//usr/local/nvidia/toolkit/nvidia-container-runtime", id="two slashes ahead"),
        pytest.param("/usr/local/./nvidia/toolkit/nvidia-container-runtime", id="a dot"),
        pytest.param("/usr/local/nvidia/../nvidia/toolkit/nvidia-container-runtime", id="two dots"),
        pytest.param(
            "/usr/local/nvidia/.toolkit-installer/versions/0/nvidia-container-runtime", id="behind the link"
        ),
    ],
)
def test_the_toolkit_is_known_however_its_path_is_spelled(spelled: str) -> None:
    plan, disk = installed(CONTAINERD, CONTAINERD.before, Record())
    assert plan.final is not None
    facts = undo_facts(CONTAINERD, disk, plan.final)
    other = File(json.dumps({"runtimes": {"gpu": {"path": spelled}}}).encode())

    back = plan_undo(replace(facts, contents={**facts.contents, DAEMON_JSON: other}), CONTAINERD.options)

    assert [error.problem for error in back.needed] == [f"remove the toolkit ({DAEMON_JSON} names {spelled})"]


@pytest.mark.parametrize("case", [DOCKER, CRIO], ids=["docker", "crio"])
def test_a_default_that_a_flag_makes_keeps_its_runtime(case: Case) -> None:
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    facts = undo_facts(case, disk, plan.final)
    (engine,) = facts.engines

    back = plan_undo(replace(facts, engines=(replace(engine, flags=Flags("nvidia")),)), case.options)

    problem = f"remove the runtime nvidia from {ENGINES[case.engine].title} (it was started with --default-runtime nvidia)"
    assert [error.problem for error in back.needed] == [problem]
    assert back.final is not None
    assert {*back.final.engines[0].runtimes} == OURS
    assert back.final.toolkit == plan.final.toolkit
    texts = [step.after for step in back.steps if isinstance(step, WriteConfig) and step.after]
    assert [text for text in texts if b"nvidia-container-runtime" in text.content] == texts
    assert not [text for text in texts if b"default" in text.content]


@pytest.mark.parametrize("case", [DOCKER, CRIO], ids=["docker", "crio"])
def test_a_flag_that_names_a_program_of_the_toolkit_keeps_it(case: Case) -> None:
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    facts = undo_facts(case, disk, plan.final)
    flags = Flags(runtimes={"gpu": f"{TOOLKIT}/nvidia-container-runtime"})

    back = plan_undo(replace(facts, engines=(replace(facts.engines[0], flags=flags),)), case.options)

    assert [error.problem for error in back.needed] == [
        (
            f"remove the toolkit ({ENGINES[case.engine].title} was started with a flag for gpu, which starts "
            f"{TOOLKIT}/nvidia-container-runtime)"
        )
    ]
    assert back.final is not None
    assert back.final.toolkit == plan.final.toolkit


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(EffectiveConfig({}, "", broken="no such import"), id="refused"),
        pytest.param(EffectiveConfig({}, "runc", undefined="runc"), id="without its default"),
    ],
)
@pytest.mark.parametrize("case", [CONTAINERD, CRIO], ids=["containerd", "crio"])
def test_an_undo_does_not_restart_into_what_the_engine_refuses(case: Case, found: EffectiveConfig) -> None:
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    facts = undo_facts(case, disk, plan.final)
    (engine,) = facts.engines
    restarts = replace(case.options, restart_mode=RestartMode.AUTO)
    ours = {entry.name: str(entry.binary) for entry in entries_for(case.options)}
    running = replace(facts, engines=(replace(engine, serving=served(ours, "runc")),))
    stopped = replace(facts, engines=(replace(engine, stopped=True),))

    back = plan_undo(running, restarts, lambda *_: found)

    assert back.steps == ()
    assert "it would not come up again" in back.needed[0].problem
    assert back.final is not None
    assert (back.final.engines, back.final.configs) == (plan.final.engines, plan.final.configs)
    assert plan_undo(stopped, restarts, lambda *_: found).final is None


def test_each_file_is_held_in_its_own_syntax_also_where_nothing_of_ours_is_left_in_it() -> None:
    drop_in = PurePosixPath("/etc/containerd/conf.d/99-nvidia.toml")
    case = Own("containerd", NOWHERE, {"drop_in": str(drop_in), "engine_version": "2.1.9"}, CONFIG, TEXT)
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    without = replace(case, said={"engine_version": "2.1.9"})

    moved, _ = installed(without, disk, plan.final)

    assert {row.syntax for row in (*moved.in_progress.configs, *plan.in_progress.configs)} == {Syntax.TOML}
    assert drop_in in {row.path for row in moved.in_progress.configs}


IMPORTED = PurePosixPath("/etc/containerd/conf.d/99-theirs.toml")
OF_OTHERS = f"""version = 2
[{OLD}.runtimes.theirs]
  runtime_type = "io.containerd.runc.v2"
  [{OLD}.runtimes.theirs.options]
    BinaryName = "{TOOLKIT}/nvidia-container-runtime"
"""


class Imports(Own, frozen=True):
    """A case whose config imports what another installer has left."""

    @property
    def before(self) -> Disk:
        root = f'imports = ["{IMPORTED.parent}/*.toml"]\n{self.text}'
        return {self.config: File(root.encode()), IMPORTED: File(OF_OTHERS.encode())}


@pytest.mark.parametrize("again", [False, True], ids=["undone at once", "installed again"])
@pytest.mark.parametrize("more", [False, True], ids=["as found", "names more"])
def test_a_file_that_named_the_toolkit_before_us_keeps_it_only_for_what_it_names_since(
    *, again: bool, more: bool
) -> None:
    case = Imports("containerd", NOWHERE, {"engine_version": "2.1.9"}, CONFIG, TEXT)
    plan, disk = installed(case, case.before, Record())
    text = OF_OTHERS + OF_OTHERS.replace("version = 2", "").replace("theirs", "more") * more
    disk = {**disk, IMPORTED: File(text.encode())}
    if again:
        assert plan.final is not None
        plan, disk = installed(case, disk, plan.final)

    back, left = undone(case, disk, plan)

    assert [error.problem for error in back.needed] == [
        f"remove the toolkit ({IMPORTED} names {TOOLKIT}/nvidia-container-runtime)"
    ] * more
    assert left[CONFIG] == case.before[CONFIG]


def test_a_text_that_was_to_pass_is_undone_also_where_it_was_edited_since() -> None:
    plan, disk = installed(DOCKER, DOCKER.before, Record())
    assert plan.final is not None
    options = replace(DOCKER.options, restart_mode=RestartMode.AUTO)
    facts = undo_facts(DOCKER, disk, plan.final)
    ours = {entry.name: str(entry.binary) for entry in entries_for(DOCKER.options)}
    serving = served({"runc": "runc", **ours}, "runc")
    facts = replace(facts, engines=(replace(facts.engines[0], serving=serving, version=(20, 10, 24)),))
    back = plan_undo(facts, options)
    passing = next(step for step in back.steps if isinstance(step, WriteConfig))
    assert passing.after is not None
    assert b'"default-runtime": "runc"' in passing.after.content
    left = edited({DAEMON_JSON: passing.after}, DAEMON_JSON, ('"warn"', '"info"'))

    again = plan_undo(undo_facts(DOCKER, left, back.in_progress), DOCKER.options)

    after = written(left, again)[DAEMON_JSON]
    assert after is not None
    assert after.content == b'{"log-level": "info"}\n'
    assert again.notes == ()


def test_an_engine_whose_unit_would_not_start_it_again_is_not_restarted() -> None:
    options = replace(CONTAINERD.options, restart_mode=RestartMode.AUTO)
    facts = CONTAINERD.facts(CONTAINERD.before, Record(), {})
    refused = InstallerError("restart containerd (no)", remedy="correct that", code="unit-failed")
    engine = replace(facts.engines[0], not_restarted=refused, serving=served({"runc": ""}, "runc"))

    plan = plan_install(replace(facts, engines=(engine,)), options)

    assert refused in plan.obstacles
    assert plan.final is not None
    held = undo_facts(CONTAINERD, written(CONTAINERD.before, plan), plan.final)
    running = replace(held.engines[0], not_restarted=refused, stopped=False)
    back = plan_undo(replace(held, engines=(running,)), options)
    assert refused in back.obstacles
    assert not plan_undo(replace(held, engines=(replace(running, stopped=True),)), options).obstacles


OLD_TABLES = f"""version = 2
[{OLD}.default_runtime]
runtime_type = "io.containerd.runc.v2"
[{OLD}.default_runtime.options]
SystemdCgroup = true
[{OLD}.untrusted_workload_runtime]
runtime_type = "io.containerd.runc.v2"
"""


def test_what_the_old_tables_serve_is_served_beside_our_default_and_after_us() -> None:
    case = Own(
        "containerd", NOWHERE, {"set_as_default": True, "engine_version": "1.7.24"}, CONFIG, OLD_TABLES
    )
    engine = case.facts(case.before, Record(), {}).engines[0]
    before = texts_alone(engine, case.before)

    plan, disk = installed(case, case.before, Record())

    now = texts_alone(engine, disk)
    assert before.handlers.keys() == {"default", "untrusted", "runc"}
    assert now.default == "nvidia"
    assert all(now.handlers[name].same(before.handlers[name]) for name in before.handlers)
    back, left = undone(case, disk, plan)
    assert back.final is None
    assert left == case.before


def test_a_default_that_would_be_served_by_no_name_any_more_is_told() -> None:
    runc = Runtime("", {"runtime_type": "io.containerd.runc.v2"})
    nvidia = Runtime(f"{TOOLKIT}/nvidia-container-runtime")
    before = EffectiveConfig({"default": runc}, "default")

    lost = [*find_disturbances(before, EffectiveConfig({"nvidia": nvidia}, "nvidia"), OURS)]
    back = [*find_disturbances(EffectiveConfig({"nvidia": nvidia}, "nvidia"), before, OURS)]

    assert lost == ["the runtime default would be lost"]
    assert back == []


def test_an_engine_that_refuses_its_default_without_us_is_disturbed_by_nothing_that_appears() -> None:
    """CRI-O's program says nothing else of a config whose default runtime is not defined."""
    refused = EffectiveConfig({}, "", undefined="nvidia")
    healed = EffectiveConfig({"runc": Runtime("/usr/bin/runc"), "nvidia": Runtime("/t/nvidia")}, "nvidia")

    assert [*find_disturbances(refused, healed, OURS)] == []
    assert [*find_disturbances(refused, EffectiveConfig({}, "runc", broken="no such file"), OURS)]
