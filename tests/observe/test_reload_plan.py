"""Why an engine is reloaded, what it has in force that its config does not say, and what a reload will not bring."""

import json
from pathlib import PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.change import pending, rows, step_reasons
from installer.config_text import Syntax, Tree
from installer.engines import ENGINES, next_start, reload_notes, reload_plan
from installer.engines.config_texts import digest_of
from installer.model.effective import EffectiveConfig, Runtime, RuntimeEntry
from installer.model.engine import EngineState, Extras, LiveContainer, SeenStart, Started
from installer.model.facts import (
    ConfigRow,
    EngineRow,
    Facts,
    Pending,
    Record,
    Saved,
    ToolkitFacts,
    ToolkitRow,
)
from installer.model.files import File, Layout
from installer.model.steps import Reload, WriteConfig

OURS = Layout().toolkit / "nvidia-container-runtime"
ENTRY = RuntimeEntry("nvidia", OURS)
MINE, THEIRS = Runtime(str(OURS)), Runtime("/opt/theirs", {"path": "/opt/theirs"})
WANTED, GONE = Reload(ENGINES["containerd"], (ENTRY,)), Reload(ENGINES["containerd"], (), (ENTRY,))
THREE = replace(WANTED, present=(ENTRY, RuntimeEntry("a", OURS), RuntimeEntry("b", OURS)))
UNWANTED_DEFAULT = replace(GONE, unwanted_defaults=frozenset({"nvidia"}))
WELL, OTHERWISE = "its config is restored", "it serves nvidia with other settings than this install wants"


def engine(name: str, serving: EffectiveConfig | None, **more: Any) -> EngineState:
    kind = ENGINES[name]
    found = replace(EngineState.usual(kind), files=(kind.config,), version=(28, 5), serving=serving)
    return replace(found, **more)


def serves(default: str = "runc", cdi: bool | None = None, /, **handlers: Runtime) -> EngineState:  # noqa: FBT001
    return engine("containerd", EffectiveConfig({"runc": Runtime(), **handlers}, default, cdi=cdi))


@pytest.mark.parametrize(
    ("step", "found", "why"),
    [
        (WANTED, engine("containerd", None, silence_reason="x"), "it is not known what it serves (x)"),
        (WANTED, serves(nvidia=MINE), WELL),
        (WANTED, serves(), "it does not serve nvidia"),
        (WANTED, serves(nvidia=THEIRS), OTHERWISE),
        (GONE, serves(nvidia=MINE), "it still serves nvidia"),
        (UNWANTED_DEFAULT, serves("nvidia"), "its default runtime is nvidia"),
        (replace(GONE, cdi=True), serves("runc", False), "it does not serve CDI devices"),
        (GONE, serves("runc", False), WELL),
        (WANTED, replace(serves(nvidia=MINE), outdated=True), "its config was changed after its start"),
        (THREE, serves(nvidia=THEIRS), f"it does not serve a, b and {OTHERWISE}"),
    ],
)
def test_why_an_engine_is_reloaded(step: Reload, found: EngineState, why: str) -> None:
    assert [reason for _, reason in step_reasons.explain_undo([step], found)] == [why]
    if found.serving is not None and not found.outdated:
        assert step.satisfied_by(found.serving) is (why == WELL)


def test_all_writes_of_a_file_of_dockers_come_before_its_one_reload() -> None:
    path, middle = ENGINES["docker"].config, File(b"{}")
    writes = [
        WriteConfig("docker", path, None, middle),
        WriteConfig("docker", path, middle, File(b'{"default-runtime": "runc", "runtimes": {}}')),
    ]
    reload = Reload(ENGINES["docker"], ())

    steps = reload_plan.plan_reload(
        writes, reload, EffectiveConfig({"runc": Runtime()}, "runc"), engine("docker", None)
    )

    assert steps == [*writes, reload]


def test_while_steps_are_under_way_all_texts_of_ours_are_known() -> None:
    goes, stays, new = PurePosixPath("/goes"), PurePosixPath("/stays"), File(b"new")
    a, b, c = (
        ConfigRow("docker", path, None, None, (text,), ())
        for path, text in ((goes, "a"), (stays, "b"), (stays, "c"))
    )
    held, final = Record(configs=(a, b), finished=True), Record(configs=(c,), finished=True)
    write = WriteConfig("docker", stays, None, new)

    now = rows.in_progress(held, final, [write])

    assert {each.path: each.ours for each in now.configs} == {goes: ("a",), stays: ("c", "b", new.digest)}
    assert not now.finished
    same = [rows.in_progress(held, *more) is held for more in ((held, []), (held, [write]), (final, []))]
    assert same == [True, False, False]


DEFAULT = "Docker has the default runtime {} in force and /etc/docker/daemon.json says {}: a reload brings "
TABLE = {"theirs": {"path": "/opt/theirs"}}


@pytest.mark.parametrize(
    ("default", "config", "told"),
    [
        ("theirs", {}, DEFAULT.format("theirs", "runc")),  # it is kept
        ("runc", {"default-runtime": "theirs"}, DEFAULT.format("runc", "theirs")),  # it is not taken up
        ("nvidia", {}, ""),  # ours comes and goes with us
        ("theirs", {"runtimes": {"runc": {"path": "/x"}}}, ""),  # dockerd would not start
    ],
)
def test_a_default_that_the_file_does_not_say_is_told(
    default: str, config: dict[str, Any], told: str
) -> None:
    serving = EffectiveConfig({"runc": Runtime("runc"), "theirs": THEIRS}, default)
    docker, text = engine("docker", serving), json.dumps({"runtimes": TABLE, **config})
    held = Record(engines=(EngineRow("docker", docker.socket, "", {"nvidia-cdi": OURS}),))
    contents = {docker.config: File(text.encode())}
    facts = Facts((docker,), contents, {}, frozenset(), ToolkitFacts(), held)

    found = reload_notes.explain_stale_state(docker, facts, (ENTRY,))

    lines = [line for line in found if "default runtime" in line]
    assert len(lines) == bool(told)
    assert all(line.startswith(told) for line in lines)


CONTAINERD: Tree = {"runtimeType": "io.containerd.runc.v2", "sandboxMode": "podsandbox", "snapshotter": ""}
LIKE: Tree = {"runtime_type": "io.containerd.runc.v2", "sandbox_mode": "", "snapshotter": ""}
CHANGES = "which is not defined as it is in its configs: its next start changes that"


def test_a_runtime_of_others_that_containerds_next_start_takes_away_is_told() -> None:
    def has(table: Tree) -> EffectiveConfig:
        handlers = {"x": Runtime("", table), "default": Runtime("/d")}
        return EffectiveConfig(handlers, "runc", rest_digest="said")

    usual = engine("containerd", has(CONTAINERD))
    now = engine("containerd", has({**CONTAINERD, "privilegedWithoutHostDevices": True}))
    wanted = has({**LIKE, "privileged_without_host_devices": False})

    (line,) = reload_notes.explain_stale_runtimes(now, wanted, ())
    assert line == f"containerd serves the runtime x, {CHANGES}"
    assert not [*reload_notes.explain_stale_runtimes(usual, has(LIKE), ())], (
        "what it fills in is no difference"
    )
    assert [*reload_notes.explain_stale_runtimes(now, wanted, {"x"})] == []
    # Where the texts alone tell, or nobody, or it would not start at all, nothing is said.
    for unknown in (replace(wanted, rest_digest=""), replace(wanted, broken="why"), None):
        assert [*reload_notes.explain_stale_runtimes(now, unknown, ())] == []
    assert [*reload_notes.explain_stale_runtimes(replace(now, serving=None), wanted, ())] == []


@pytest.mark.parametrize(
    ("name", "cdi", "asked", "told", "said_of_it"),
    [
        ("docker", None, True, False, "has no effect, for this dockerd has no CDI"),
        ("docker", False, True, True, "takes effect when dockerd starts the next time"),
        ("containerd", None, True, True, "has no effect, for this containerd has no CDI"),
        ("containerd", None, True, False, ""),
        ("containerd", False, True, True, ""),
    ],
)
def test_what_becomes_of_cdi_after_a_reload(
    name: str, said_of_it: str, *, cdi: bool | None, asked: bool, told: bool
) -> None:
    facts = engine(name, EffectiveConfig({}, "runc", cdi=cdi))

    found = pending.find_pending_cdi(facts, Extras(cdi=asked), asks_cdi=told)
    row = EngineRow(name, facts.socket, facts.unit, {}, pending=found)

    assert pending.describe_pending(row).endswith(said_of_it)
    assert bool(found) == bool(said_of_it)
    assert pending.find_pending_cdi(replace(facts, serving=None), Extras(cdi=asked), asks_cdi=told) is None


def _dumped(driver: bool, *names: str, default: str = "runc", schema: int = 3) -> EffectiveConfig:  # noqa: FBT001
    table = {"options": {"SystemdCgroup": driver}}
    handlers = {name: Runtime("", table) for name in names}
    return EffectiveConfig(handlers, default, rest_digest="said", schema=schema, is_printed=True)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        pytest.param(_dumped(False, "runc", "kata", "nvidia"), "", id="ours appears"),
        pytest.param(_dumped(False, "runc", "kata", "more"), "", id="another appears"),
        pytest.param(_dumped(False, "runc"), "takes away the runtime kata, which it serves", id="one goes"),
        pytest.param(
            _dumped(True, "runc", "kata"),
            "gives the runtime kata SystemdCgroup = true, and it runs with false; its next start gives the runtime "
            "runc SystemdCgroup = true, and it runs with false",
            id="the driver",
        ),
        pytest.param(
            _dumped(False, "runc", "kata", default="kata"), "makes kata the default runtime", id="default"
        ),
        pytest.param(_dumped(False, "runc", "kata", default="nvidia"), "", id="ours is the default"),
        pytest.param(
            _dumped(False, "runc", "kata", schema=2), "of another major version", id="another major"
        ),
        pytest.param(replace(_dumped(False, "runc"), is_printed=False), "", id="the texts alone tell"),
        pytest.param(
            replace(_dumped(False, "runc", "kata"), cgroup_driver="cgroupfs"),
            "uses the cgroup driver cgroupfs in the place of systemd",
            id="the driver of all runtimes",
        ),
        pytest.param(replace(_dumped(False, "runc"), broken="why"), "", id="it would not start"),
    ],
)
def test_what_a_restart_of_ours_would_take_from_others_is_refused(after: EffectiveConfig, told: str) -> None:
    serving = replace(_dumped(False, "runc", "kata"), cgroup_driver="systemd")
    running = replace(engine("containerd", serving), version=(2, 1, 9))

    found = [*next_start.explain_losses(running, after, {"nvidia"})]

    assert [error.code for error in found] == ["pending-by-others"] * bool(told)
    assert all(told in error.problem for error in found)
    assert [*next_start.explain_losses(replace(running, serving=None), after, {"nvidia"})] == []
    still = [*next_start.explain_losses(running, after, {"nvidia"}, accepts_pending=True)]
    accepted = [*next_start.explain_accepted(running, after, {"nvidia"})]
    is_value = bool(told) and "major" not in told
    assert len(still) == len(found) - is_value, "a value is accepted, another program is not"
    named = ["--accept-pending" in error.remedy for error in found]
    assert named == [is_value] * bool(told), "the flag is named where it helps, and nowhere else"
    values = "; ".join(note.rpartition("--accept-pending: ")[2] for note in accepted)
    assert bool(values) is is_value
    assert not is_value or told in f"{values})"
    assert all("--accept-pending" in note for note in accepted)


@pytest.mark.parametrize(
    ("recorded", "told", "after", "words"),
    [
        pytest.param(
            {"storage_driver": "overlayfs"},
            {},
            {"storage_driver": "native"},
            "with native in the",
            id="storage",
        ),
        pytest.param(
            {}, {"storage_driver": "overlayfs"}, {"storage_driver": "native"}, "with native in the", id="1.x"
        ),
        pytest.param(
            {"storage_driver": "native"}, {}, {"storage_driver": "native"}, "", id="the same storage"
        ),
        pytest.param({}, {}, {"storage_driver": "native"}, "", id="the storage in force is unknown"),
        pytest.param({"nri": True}, {}, {"nri": False}, "switches NRI off", id="NRI"),
        pytest.param({"nri": False}, {}, {"nri": True}, "", id="NRI is switched on"),
        pytest.param(
            {"nri": False}, {"nri": True}, {"nri": False}, "switches NRI off", id="its answer counts first"
        ),
        pytest.param({}, {}, {"nri": False}, "", id="NRI in force is unknown"),
    ],
)
def test_record_of_a_start_tells_what_the_engine_does_not(
    recorded: dict[str, Any], told: dict[str, Any], after: dict[str, Any], words: str
) -> None:
    serving = replace(_dumped(False, "runc"), **told)
    seen = SeenStart("5f", {}, **recorded)
    running = replace(engine("containerd", serving), version=(2, 1, 9), seen_start=seen)

    found = [*next_start.explain_losses(running, replace(_dumped(False, "runc"), **after), ())]

    assert [words in error.problem for error in found] == [True] * bool(words)
    changed = replace(_dumped(False, "runc"), **after)
    still = [*next_start.explain_losses(running, changed, (), accepts_pending=True)]
    helps = "native" not in words
    assert ["--accept-pending" in error.remedy for error in found] == [helps] * bool(words)
    assert len(still) == ("native" in words), "elsewhere the present containers are not found"


def test_what_others_have_changed_since_a_start_is_named_without_its_values() -> None:
    running = engine("containerd", _dumped(False, "runc"))
    config = running.config
    started = Started(("--log-level", "info"), {"A": "1", "PATH": "/bin"}, "/usr/bin/containerd")
    later = Started(("--log-level", "info", "--metrics=secret"), {"A": "2", "B": "secret"}, started.program)
    running = replace(
        running,
        files=(config,),
        changed=(config,),
        replaced=True,
        exe=PurePosixPath(started.program),
        started=started,
        next_start=later,
    )
    contents = {config: File(b"version = 3\n")}

    def told(held: Record, after: EffectiveConfig) -> list[str]:
        facts = Facts((running,), contents, {}, frozenset(), ToolkitFacts(), held)
        return [*reload_notes.explain_changes(running, after, facts, {"nvidia"})]

    unread = replace(running, unit_unread=True)
    facts = Facts((unread,), contents, {}, frozenset(), ToolkitFacts(), Record())
    assert [*reload_notes.explain_changes(unread, None, facts, {"nvidia"})][-1] == (
        "containerd.service was changed on disk, and systemd uses that only after systemctl daemon-reload: the "
        "restart of containerd does not bring that into force"
    )
    row = EngineRow("containerd", running.socket, "", {}, proven=digest_of(contents))
    changed, *others = told(Record(), _dumped(False, "runc", "kata", "nvidia"))
    assert (
        changed == f"{config} was changed after the start of containerd: its restart brings that into force"
    )
    assert others == [
        "/usr/bin/containerd was replaced after the start of containerd: its restart runs the new program",
        "containerd.service was changed after the start of containerd: its restart takes up --metrics, A, B",
        "the restart of containerd adds the runtime kata, which others have defined",
    ]
    assert changed not in told(Record(engines=(row,)), _dumped(False, "runc")), "as it is recorded"
    ours = ConfigRow("containerd", config, None, None, (contents[config].digest,), ())
    assert changed not in told(Record(configs=(ours,)), _dumped(False, "runc")), "as we wrote it"
    before_us = replace(ours, original=Saved.of(contents[config]), ours=("a",))
    assert changed in told(Record(configs=(before_us,)), _dumped(False, "runc")), "as its owner restored it"
    undone = Record(
        engines=(replace(row, proven="", pending=Pending.RESTART_AFTER_UNDO),), configs=(before_us,)
    )
    assert changed not in told(undone, _dumped(False, "runc")), "as our undo left it"


def test_a_runtime_of_others_with_the_name_of_one_of_ours_is_named_at_the_first_install() -> None:
    running = serves("nvidia", nvidia=Runtime("/usr/bin/nvidia-container-runtime"), kata=Runtime("/opt/kata"))
    entries = (ENTRY, RuntimeEntry("nvidia-cdi", OURS))

    def told(found: EngineState, record: Record = Record()) -> list[str]:  # noqa: B008 - frozen
        facts = Facts((found,), {}, {}, frozenset(), ToolkitFacts(), record)
        return [*reload_notes.explain_taken_over(found, facts, entries)]

    (said,) = told(running)
    assert said == (
        "others have defined the runtime nvidia (the default runtime) of containerd: until an uninstall it "
        "runs our program"
    )
    assert told(serves(nvidia=THEIRS)) == [
        "others have defined the runtime nvidia of containerd: until an uninstall it runs our program"
    ]
    assert told(serves(nvidia=MINE)) == [], "as an installer with the same directory has left it"
    assert told(engine("containerd", None)) == []
    row = EngineRow("containerd", running.socket, "", {})
    assert told(running, Record(engines=(row,))) == [], "a later install repairs what others have changed"


FEATURES: Tree = {"containerd-snapshotter": False}


@pytest.mark.parametrize(
    ("config", "effect"),
    [
        ({"live-restore": True, "debug": False, "labels": ["a=b"]}, ""),
        ({"live-restore": False, "debug": True, "labels": []}, "takes up debug, labels, live-restore"),
        ({"debug": False, "features": FEATURES}, "may take up features"),
        (
            {"debug": True, "features": FEATURES, "shutdown-timeout": 15},
            "takes up debug and may take up features, shutdown-timeout",
        ),
        ({"log-driver": "json-file"}, ""),
    ],
    ids=["in force", "changed", "not known", "changed and not known", "not taken up"],
)
def test_a_reload_of_docker_names_the_keys_that_may_differ_from_those_in_force(
    config: Tree, effect: str
) -> None:
    docker = _edited_docker()
    contents = {docker.config: File(json.dumps(config).encode())}
    facts = Facts((docker,), contents, {}, frozenset(), ToolkitFacts(), Record())

    told = [*reload_notes.explain_changes(docker, None, facts, {"nvidia"})]

    start = f"{docker.config} was changed after the start of Docker: its reload"
    assert told == ([f"{start} {effect}, too"] if effect else [])


@pytest.mark.parametrize(
    ("row", "record", "config", "effect"),
    [
        ({}, {}, {"features": FEATURES}, ""),
        ({}, {}, {"features": {**FEATURES, "buildkit": True}}, "takes up features"),
        ({}, {}, {"features": FEATURES, "shutdown-timeout": 15}, "takes up shutdown-timeout"),
        ({"pending": Pending.CDI_AT_NEXT_START}, {}, {"features": FEATURES}, ""),
        ({"pending": Pending.RESTART_BY_OWNER}, {}, {"features": FEATURES}, "may take up features"),
        ({}, {"finished": False}, {"features": FEATURES}, "may take up features"),
    ],
    ids=["the same", "changed", "added", "CDI is pending", "was never read", "was not finished"],
)
def test_a_reload_of_docker_leaves_out_the_keys_that_the_last_install_has_found_as_they_are(
    row: dict[str, Any], record: dict[str, Any], config: Tree, effect: str
) -> None:
    docker = _edited_docker()
    original = File(json.dumps({"features": FEATURES}).encode())
    text = File(json.dumps(config).encode())
    engine_row = EngineRow("docker", docker.socket, "", {}, **row)
    config_row = ConfigRow("docker", docker.config, Syntax.JSON, Saved.of(original), ("other",), ())
    held = Record(engines=(engine_row,), configs=(config_row,), finished=True)
    facts = Facts(
        (docker,),
        {docker.config: text},
        {docker.config: original},
        frozenset(),
        ToolkitFacts(),
        replace(held, **record),
    )

    told = [*reload_notes.explain_changes(docker, None, facts, {"nvidia"})]

    start = f"{docker.config} was changed after the start of Docker: its reload"
    assert told == ([f"{start} {effect}, too"] if effect else [])


def _edited_docker() -> EngineState:
    in_force: Tree = {"live-restore": True, "debug": False, "labels": ["a=b"]}
    docker = engine("docker", EffectiveConfig({"runc": Runtime()}, "runc", settings=in_force))
    return replace(docker, changed=(docker.config,))


CRUN = Runtime("/usr/bin/crun", {"runtime_root": "/run/crun"})
RUNC = Runtime("/usr/bin/runc", {"runtime_root": "/run/runc"})
RUNC_AT_CRUNS = Runtime("/usr/bin/runc", {"runtime_root": "/run/crun"})
ON_CRUN = Runtime(str(OURS), {"runtime_root": "/run/crun"})
BY_OURS = LiveContainer("default/a", "", "/run/crun", str(OURS))
OF_CRUN = LiveContainer("default/a", "crun", "/run/crun", "/usr/bin/crun")
WRAPS_CRUN = '[nvidia-container-runtime]\nruntimes = ["/usr/bin/crun", "runc"]\n'


def _at(default: str, **handlers: Runtime) -> EffectiveConfig:
    return EffectiveConfig(
        {"crun": CRUN, "runc": RUNC, "nvidia": ON_CRUN, **handlers}, default, is_printed=True
    )


@pytest.mark.parametrize(
    ("live", "now", "after", "told"),
    [
        pytest.param(BY_OURS, _at("nvidia"), _at("crun"), "", id="the default that ours wraps"),
        pytest.param(BY_OURS, _at("nvidia"), _at("runc"), "under /run/runc, by", id="another root"),
        pytest.param(
            BY_OURS, _at("nvidia"), _at("runc", runc=RUNC_AT_CRUNS), "with runc, by", id="another program"
        ),
        pytest.param(BY_OURS, _at("runc"), _at("nvidia"), "", id="our restart finds it again"),
        pytest.param(BY_OURS, _at("runc"), _at("runc"), "", id="lost already"),
        pytest.param(OF_CRUN, _at("nvidia"), _at("runc"), "", id="a handler of its own"),
        pytest.param(
            OF_CRUN, _at("runc"), _at("runc", crun=Runtime("/usr/bin/crun", {"runtime_root": "/run/x"})),
            "under /run/x, by the runtime crun", id="a handler that its owner moves",
        ),
        pytest.param(
            replace(BY_OURS, handler="gpu"), _at("runc", gpu=ON_CRUN), _at("runc"), "runs on gpu, which",
            id="not defined",
        ),
        pytest.param(
            replace(BY_OURS, handler="gpu"), _at("runc"), _at("runc"), "", id="not defined now"
        ),
        pytest.param(
            replace(OF_CRUN, handler="built-in"), _at("runc"), replace(_at("runc"), is_printed=False), "",
            id="built in, as far as is known",
        ),
        pytest.param(
            replace(OF_CRUN, handler=""),
            _at("crun"),
            _at("nvidia", nvidia=Runtime(str(OURS), {"runtime_root": "/run/runc"})),
            "under /run/runc, by the runtime nvidia",
            id="our new default",
        ),
    ],
)  # fmt: skip
def test_a_restart_that_would_lose_a_container_of_crios_is_refused(
    live: LiveContainer, now: EffectiveConfig, after: EffectiveConfig, told: str
) -> None:
    running = engine("crio", now, live=(live,))
    record = Record(toolkit=ToolkitRow("v", None, WRAPS_CRUN))
    facts = Facts((running,), {}, {}, frozenset(), ToolkitFacts(), record)

    found = [*next_start.explain_lost_containers(running, after, facts)]

    assert [error.code for error in found] == ["pending-by-others"] * bool(told)
    assert all(told in error.problem for error in found)


def test_a_reloaded_crio_reports_its_next_start_and_still_finds_its_containers() -> None:
    after = _at("runc")
    running = engine("crio", after, live=(BY_OURS,), changed=(PurePosixPath("/etc/crio/crio.conf"),))
    facts = Facts((running,), {}, {}, frozenset(), ToolkitFacts(), Record())

    assert [*next_start.explain_lost_containers(running, after, facts)] != []
