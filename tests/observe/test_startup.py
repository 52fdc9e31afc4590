"""How an engine was started and will be, and whether it may be restarted or reloaded: by systemd 252 and 257, and /proc."""

import dataclasses
import shlex
import time
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES, startup
from installer.engines.config_files import with_places
from installer.engines.containerd.effective import read_dump
from installer.engines.crio.config import read_effective
from installer.engines.next_start import explain_moved_places
from installer.engines.observe import explain_moving, with_process, with_start
from installer.errors import InstallerError
from installer.host import processes
from installer.host.files import Host
from installer.host.processes import monitors_in_unit_of
from installer.host.systemd import UnitStart
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState, Started
from installer.model.options import Options, Places, RestartMode
from tests.host.servers import FakeSystemd, FakeUnit
from tests.support.files import put
from tests.support.live import UNIT_PROPERTIES, on_bus

PLACES = {"root": "/srv/root", "state": "/run/containerd", "address": "/run/containerd/containerd.sock"}
SERVING = EffectiveConfig({}, "runc", places=PLACES)
FACTS = replace(EngineState.usual(ENGINES["containerd"]), serving=SERVING)
# As GetAll of systemd 252 and 257 has it, of a unit that starts its service as it is.
UNIT: dict[str, Any] = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "ExecStart": [],
    "Environment": [],
    "EnvironmentFiles": [],
    "RootDirectory": "",
    "RefuseManualStart": False,
    "RefuseManualStop": False,
    "KillMode": "process",
}
Words = tuple[str, ...] | None
CGROUP = "0::/system.slice/containerd.service"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.under(PurePosixPath(tmp_path))


def test_of_a_config_that_is_named_twice_the_engine_reads_the_last(host: Host) -> None:
    words = ("--config-file", "/etc/docker/daemon.json", "--debug", "--config-file=/etc/docker/site.json")
    docker = replace(EngineState.usual(ENGINES["docker"]), started=Started(words, program="/usr/bin/dockerd"))

    engine = with_places(host, docker, Places())

    assert engine.config == PurePosixPath("/etc/docker/site.json")


def started(now: Words, later: Words) -> EngineState:
    first, next_start = (
        None if words is None else Started(words, program="/usr/bin/containerd") for words in (now, later)
    )
    return replace(FACTS, started=first, next_start=next_start)


def reason(
    host: Host, now: Words = None, later: Words = None, process: Path | None = None, **changed: Any
) -> str:
    """Return why an engine is not restarted, "" where it may be."""
    unit = UnitStart.of(UNIT | changed)
    found = next(startup.find_refusals(host, started(now, later), unit, process), None)
    return found.problem if found else ""


@pytest.mark.parametrize(
    ("now", "later", "said"),
    [
        ((), ("--root", "/other"), "gives it --root /other, and it runs with /srv/root"),
        (("-a", "/run/a"), ("--address=/run/b",), "gives it --address /run/b, and it runs with /run/a"),
        ((), ("-c", "/opt/x"), "gives it --config /opt/x, and it runs with /etc/containerd/config.toml"),
        (None, ("--state", "/run/x"), "gives it --state /run/x, and it runs with /run/containerd"),
        ((), ("--root", "/srv/root/", "--config=/etc/containerd/config.toml"), ""),
        (("--root", "/x"), ("--root=/x", "--log-level", "debug"), ""),
        (("--root", "/x"), None, ""),
    ],
)
def test_places_that_the_next_start_has_elsewhere_are_told_with_both_values(
    host: Host, now: Words, later: Words, said: str
) -> None:
    found = reason(host, now, later)

    assert said in found
    assert bool(said) == bool(found)


def test_drop_ins_that_the_next_start_of_a_crio_reads_elsewhere_are_told() -> None:
    words = [Started(each, program="/usr/bin/crio") for each in ((), ("--config-dir=/etc/crio/other.d",))]
    engine = replace(EngineState.usual(ENGINES["crio"]), started=words[0], next_start=words[1])

    (move,) = startup.find_moves(engine)

    assert move == "--config-dir /etc/crio/other.d, and it runs with /etc/crio/crio.conf.d"
    assert not [*startup.find_moves(replace(engine, started=words[1]))]


@pytest.mark.parametrize(
    ("guessed", "now", "later", "said"),
    [
        (False, {}, {"CONTAINER_ROOT": "/srv"}, ["CONTAINER_ROOT /srv, and it runs with /var/lib/x"]),
        (
            True,
            {"CONTAINER_ROOT": "/srv"},
            {"CONTAINER_ROOT": "/srv"},
            ["CONTAINER_ROOT /srv, and it runs with /var/lib/x"],
        ),
        (False, {"CONTAINER_ROOT": "/srv"}, {"CONTAINER_ROOT": "/srv"}, []),
        (True, {"CONTAINER_ROOT": "/var/lib/x"}, {"CONTAINER_ROOT": "/var/lib/x"}, []),
    ],
    ids=["new", "perhaps new", "old", "as it serves"],
)
def test_a_place_that_a_variable_gives_the_next_start_of_a_crio_is_told(
    *, guessed: bool, now: dict[str, str], later: dict[str, str], said: list[str]
) -> None:
    serving = EffectiveConfig({}, "", places={"root": "/var/lib/x"})
    engine = replace(
        EngineState.usual(ENGINES["crio"]),
        serving=serving,
        started=Started((), now, "/usr/bin/crio", guessed=guessed),
        next_start=Started((), later, "/usr/bin/crio"),
    )

    assert [*startup.find_moves(engine)] == said


@pytest.mark.parametrize("what", ["RefuseManualStop", "RefuseManualStart"])
def test_a_unit_that_systemd_restarts_for_nobody_is_told(host: Host, what: str) -> None:
    changed: dict[str, Any] = {what: True}

    assert f"containerd.service has {what}=yes" in reason(host, **changed)
    assert "its unit containerd.service is masked" in reason(host, LoadState="masked")
    assert not reason(host)


def run(root: Path, pid: int, name: str, *words: str, cgroup: str = CGROUP, parent: int = 1) -> None:
    """Write what /proc has of a process."""
    said = {
        "comm": f"{name}\n",
        "cgroup": f"{cgroup}\n",
        "cmdline": "".join(f"{word}\0" for word in (f"/usr/bin/{name}", *words)),
        "stat": f"{pid} ({name}) S {parent} 18 18 0 -1\n",
    }
    put(root, {f"proc/{pid}/{file}": text for file, text in said.items()})


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc as the kernel has it: an engine, what it started, and who is in another unit."""
    shims = (
        CGROUP,
        f"{CGROUP}/below",
        "0::/system.slice/docker.service",
        "0::/kubepods/pod1/shim",
        "0::/system.slice/docker-1.scope/system.slice/containerd.service",
    )
    run(tmp_path, 10, "containerd")
    for pid, cgroup in enumerate(shims, 11):
        run(tmp_path, pid, "containerd-shim", cgroup=cgroup)
    run(tmp_path, 16, "pause")
    run(tmp_path, 17, "conmon", "-c", "feed")
    (tmp_path / "proc/sys").mkdir()
    return tmp_path / "proc"


@pytest.mark.parametrize(("pid", "monitors"), [(10, 3), (13, 1), (14, 0), (99, 0)])
def test_only_monitors_in_the_units_own_cgroup_go_with_it(proc: Path, pid: int, monitors: int) -> None:
    assert monitors_in_unit_of(proc / str(pid)) == monitors


@pytest.mark.parametrize(
    ("words", "parent", "counts"),
    [
        pytest.param(("-c", "feed", "-n", "app", "-e", "--sync"), 10, False, id="an exec's"),
        pytest.param(("-b", "/run/feed", "-c", "feed"), 10, False, id="of one that is being made"),
        pytest.param(("-b", "/run/feed", "-c", "feed"), 1, True, id="a live container's"),
    ],
)
def test_a_conmon_that_holds_no_container_is_not_counted(
    proc: Path, words: tuple[str, ...], parent: int, *, counts: bool
) -> None:
    run(proc.parent, 18, "conmon", *words, parent=parent)

    assert monitors_in_unit_of(proc / "10") == 3 + counts


def test_a_stop_is_refused_if_not_all_processes_can_be_looked_at_in_time(
    host: Host, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOK_S", -1.0)

    told = reason(host, process=proc / "10", KillMode="mixed")

    assert "shims of live containers may run in it (not all processes can be looked at within 2 s)" in told
    assert reason(host, process=proc / "10", KillMode="process") == ""


@pytest.mark.parametrize("mode", ["control-group", "mixed", "process", ""])
def test_a_stop_that_ends_live_containers_is_refused(host: Host, proc: Path, mode: str) -> None:
    kills = mode in {"control-group", "mixed"}

    three, one = (reason(host, process=proc / pid, KillMode=mode) for pid in ("10", "13"))

    assert (f"KillMode={mode}, and 3 shims of live containers run in it" in three) == kills == bool(three)
    assert ("1 shim of live containers runs in it" in one) == kills
    assert not reason(host, KillMode=mode)


FLAG, TEXT, EMPTY, PROGRAM, LINK = (
    f"/opt/site/{name}" for name in ("flag", "text", "empty", "program", "link")
)


def condition(kind: str, path: str = TEXT, *, negated: bool = False) -> dict[str, Any]:
    return {"Conditions": [(f"Condition{kind}", False, negated, path, 0)]}


def fails(kind: str, path: str = TEXT) -> str:
    return f"{kind}={path} does not hold"


MAY_FAIL = [("containerd", ["containerd"], False), (FLAG, [FLAG], True)]
TWO = {"Conditions": [("ConditionPathExists", True, False, path, 0) for path in (FLAG, LINK)]}
NEEDS: dict[str, tuple[dict[str, Any], str]] = {
    "all is there": ({}, ""),
    "its own file": ({"LoadState": "not-found"}, "its unit file is gone"),
    "no such unit": ({"LoadState": "not-found", "ActiveState": "inactive"}, ""),
    "files": (
        {"EnvironmentFiles": [("/opt/1", True), (FLAG, False)]},
        f"its EnvironmentFile {FLAG} is not there",
    ),
    "a pattern": ({"EnvironmentFiles": [("/opt/site/*.env", False)]}, ""),
    "a program": ({"ExecStart": [*MAY_FAIL, (TEXT, [TEXT], False)]}, f"its ExecStart {TEXT} is no program"),
    "a test of a file": ({"ExecStartPre": [("/usr/bin/test", [PROGRAM, "-f", FLAG], False)]}, ""),
    "another root": ({"ExecStart": [(FLAG, [FLAG], False)], "RootDirectory": "/srv"}, ""),
    "a path": (condition("PathExists", FLAG), fails("ConditionPathExists", FLAG)),
    "no path": (condition("PathExists", negated=True), fails("ConditionPathExists", f"!{TEXT}")),
    "the service's own lock": (condition("PathExists", "/run/lock", negated=True), ""),
    "one of two": (TWO, ""),
    "no text in a file": (condition("FileNotEmpty", EMPTY), fails("ConditionFileNotEmpty", EMPTY)),
    "a text in a file": (condition("FileNotEmpty"), ""),
    "an executable file": (condition("FileIsExecutable"), fails("ConditionFileIsExecutable")),
    "what is not about a path": (condition("KernelCommandLine", "nogpu"), ""),
}


@pytest.mark.parametrize(("changed", "lack"), NEEDS.values(), ids=NEEDS)
def test_what_a_unit_needs_and_would_not_find_is_told_and_the_rest_left_alone(
    host: Host, tmp_path: Path, changed: dict[str, Any], lack: str
) -> None:
    put(tmp_path, {PROGRAM: "#!/bin/sh\n"}, 0o755)
    put(tmp_path, {TEXT: "text", EMPTY: "", "/run/lock": ""})
    (tmp_path / LINK[1:]).symlink_to(TEXT)

    found = reason(host, **changed)

    assert found == (lack and f"restart containerd (containerd.service would not start it again: {lack})")


def test_places_that_files_give_are_those_without_a_flag() -> None:
    cases = ((), ("--root", "/x")), (("--state=/x", "-a", "/y"), None), (None, None)

    assert [{*startup.list_places_by_files(started(*each))} for each in cases] == [
        {"state", "address"},
        {"root"},
        set(),
    ]


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_config_that_moves_a_place_is_told_with_both_values(place: str) -> None:
    facts, old = replace(FACTS, places_by_files=frozenset(PLACES)), PLACES[place]
    after = replace(SERVING, places={**PLACES, place: "/new"})

    (found,) = explain_moved_places(facts, after)

    assert f"its config gives it the {place} /new, and it runs with {old})" in found.problem
    for later in (PLACES, {**PLACES, place: f"{old}/"}, {}):
        assert not [*explain_moved_places(facts, replace(SERVING, places=later))]
    for now in (replace(facts, places_by_files=frozenset()), replace(facts, serving=None)):
        assert not [*explain_moved_places(now, after)]


def test_crio_and_containerd_print_where_they_are() -> None:
    bare: dict[str, Any] = {"runtime": {"x": 1}}  # its defaults are commented out
    places: dict[str, Any] = {"root": "/srv/crio", "runroot": "/run/other"}
    cri: dict[str, Any] = {"io.containerd.grpc.v1.cri": {"containerd": {"default_runtime_name": "runc"}}}
    dump: dict[str, Any] = {**PLACES, "grpc": {"address": PLACES["address"]}, "plugins": cri}

    assert read_dump(dump).places == PLACES
    listens = read_effective({"crio": {**bare, **places, "api": {"listen": "/run/x.sock"}}})
    assert listens.places == {**places, "listen": "/run/x.sock"}
    assert read_effective({"crio": bare}).places == {}


WELL = FakeUnit(can_reload=True)
REACHED = "run it as a systemd service, or configure it unverified with --restart-mode none"
UNSEEN = "run with the host's pid namespace (hostPID: true), because its process cannot be seen from here"
OUTSIDE = "restart containerd (it runs outside any systemd service)"


def running(name: str, pid: int | None, *, unit: bool = True) -> EngineState:
    usual = EngineState.usual(ENGINES[name])
    return replace(usual, unit=usual.unit if unit else "", pid=pid)


NO_EXEC_RELOAD = f"reload Docker (its unit docker.service has no ExecReload); {UNSEEN}"
INACTIVE = f"reload Docker (its unit docker.service is inactive, so another process answers); {UNSEEN}"


@pytest.mark.parametrize(
    ("engine", "unit", "said"),
    [
        # Restarted by systemd.
        (running("containerd", None), FakeUnit(), ""),
        (running("containerd", 7, unit=False), FakeUnit(), f"{OUTSIDE}; {REACHED}"),
        (running("containerd", None, unit=False), FakeUnit(), f"{OUTSIDE}; {UNSEEN}"),
        (running("containerd", 7), None, "reach systemd"),
        # Signalled, by its unit where its process is not seen.
        (running("docker", 7, unit=False), None, ""),
        (running("docker", None), WELL, ""),
        (running("docker", None), FakeUnit(), NO_EXEC_RELOAD),
        (running("docker", None), dataclasses.replace(WELL, active="inactive"), INACTIVE),
        (running("docker", None), None, "reload Docker (reach systemd"),
        # It restarts itself.
        (running("k0s", None), FakeUnit(active="failed"), ""),
    ],
)
def test_why_an_engine_could_not_be_reloaded(
    host: Host, tmp_path: Path, engine: EngineState, unit: FakeUnit | None, said: str
) -> None:
    with on_bus(tmp_path, FakeSystemd({engine.unit: unit})) if unit else nullcontext():
        found = startup.find_unit_obstacle(host, engine)

    told = f"{found.problem}; {found.remedy}" if found else ""
    assert told.startswith(said) if unit is None else told == said
    assert bool(told) == bool(said)


def test_only_engines_that_serve_and_are_reloaded_need_a_unit(host: Host) -> None:
    """A start is its owner's."""
    stopped = running("containerd", 7, unit=False)
    serves = replace(stopped, serving=SERVING)
    cases = [*((mode, serves) for mode in RestartMode), (RestartMode.AUTO, stopped)]

    needy = [
        mode for mode, each in cases if startup.find_unit_obstacles(host, Options(restart_mode=mode), [each])
    ]

    assert needy == [RestartMode.AUTO, RestartMode.WHEN_IDLE]


# How it was started, and will be

USUAL = EngineState.usual(ENGINES["containerd"])
VARIABLE = "CONTAINER_DEFAULT_RUNTIME"


@pytest.mark.parametrize(
    ("engine", "cmdline", "config", "state"),
    [
        ("containerd", "containerd --state /mnt/s", "", "/mnt/s"),
        ("containerd", "containerd", 'state = "/mnt/s"\n', "/mnt/s"),
        ("docker", "dockerd --exec-root=/mnt/d", "", "/mnt/d/containerd/daemon"),
    ],
)
def test_where_an_engine_keeps_its_state_is_told_by_flag_or_config(
    tmp_path: Path, engine: str, cmdline: str, config: str, state: str
) -> None:
    host = put(tmp_path, {"config.toml": config})

    found = startup.find_place(host, ENGINES[engine].state, cmdline.split(), PurePosixPath("/config.toml"))

    assert str(found) == state


@pytest.mark.parametrize(
    ("engine", "cmdline", "default", "flag"),
    [
        ("docker", "dockerd --add-runtime=a=/b", False, "--add-runtime"),
        ("docker", "dockerd --default-runtime a", True, "--default-runtime"),
        ("docker", "dockerd --default-runtime a", False, ""),  # no default is asked for
        ("crio", f"crio {VARIABLE}=a", True, VARIABLE),
        ("crio", f"crio {VARIABLE}=nvidia", True, ""),  # it names ours
    ],
)
def test_a_flag_that_is_stronger_than_the_config_is_reported(
    engine: str, cmdline: str, flag: str, *, default: bool
) -> None:
    found = list(
        startup.explain_overruling(ENGINES[engine], cmdline.split(), Options(set_as_default=default))
    )

    assert len(found) == bool(flag)
    assert all(flag in error.problem for error in found)


PID = 61


def systemd(**said: tuple[str, Any]) -> FakeSystemd:
    """Return a systemd whose unit has the process with that pid."""
    return FakeSystemd({USUAL.unit: FakeUnit(main_pid=PID)}, changed=UNIT_PROPERTIES | said)


def command(*words: str) -> tuple[str, Any]:
    return "a(sasbttttuii)", [(words[0], [*words], False, 0, 0, 0, 0, 0, 0, 0)]


CMDLINE = "/usr/bin/containerd\0-l\0x\0"
STAT = "61 (containerd) S 0 1 1 0 -1 4194560 24000 200000 100 900 300 100 500 200 20 0 1 0 12300 0\n"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({"cmdline": CMDLINE, "stat": STAT}, ("-l", "x"), id="its own"),
        pytest.param({"comm": "sleep\n", "cmdline": "sleep\0-l\0x\0"}, None, id="another by that pid"),
        pytest.param({}, None, id="ended meanwhile"),
    ],
)
def test_a_process_that_is_not_seen_is_that_of_its_unit_in_the_hosts_proc(
    tmp_path: Path, files: dict[str, str], words: tuple[str, ...] | None
) -> None:
    environ = "PATH=/opt/bin\0NOTIFY_SOCKET=/run/systemd/notify\0"
    said = {"comm": "containerd\n", "environ": environ} | files
    put(tmp_path, {f"proc/{PID}/{name}": text for name, text in said.items()})

    fake = systemd(Environment=("as", ["LEVEL=warn"]))
    with on_bus(tmp_path, fake) as host:
        found = with_process(host, replace(USUAL, exe=PurePosixPath("/gone")), Places())[0].started

    assert fake.calls.count("GetAll") == 1, "its unit is read once"
    assert (found.words if found else None) == words
    if found:
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        assert found.began_s == (pytest.approx(booted_s + 123.0, abs=2) if "stat" in files else None)
        environment = {"LEVEL": "warn"} if files.get("environ") == "" else {"PATH": "/opt/bin"}
        assert (found.program, found.environment) == ("/usr/bin/containerd", environment)


def test_a_word_of_an_environment_file_is_part_of_the_next_start(tmp_path: Path) -> None:
    put(tmp_path, {"etc/default": "# of the site\nWORDS='--root /srv/c'\n"})
    fake = systemd(
        ExecStart=command("/usr/bin/containerd", "$WORDS", "--log-level=${LEVEL}"),
        Environment=("as", ["LEVEL=warn"]),
        EnvironmentFiles=("a(sb)", [("/etc/default", False)]),
    )

    with on_bus(tmp_path, fake) as host:
        found = with_start(host, USUAL)

    assert found.next_words == ("--root", "/srv/c", "--log-level=warn")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("/usr/bin/containerd --root /srv", ("--root", "/srv")),
        ("/usr/bin/nice -n 5 /usr/bin/containerd -a /x", ("-a", "/x")),
        ("/bin/sh -c 'exec /usr/bin/containerd --root /srv'", ()),
    ],
)
def test_the_words_of_the_next_start_are_those_behind_the_engines_program(
    tmp_path: Path, words: str, told: tuple[str, ...]
) -> None:
    with on_bus(tmp_path, systemd(ExecStart=command(*shlex.split(words)))) as host:
        assert with_start(host, USUAL).next_words == told


MOVES = InstallerError("why", remedy="what", code="restart-moves-engine")
NOT_STARTED = InstallerError("why", remedy="what", code="unit-failed")
CONFIG_TOML = "/etc/containerd/config.toml"


@pytest.mark.parametrize(
    ("now", "later", "why", "moves"),
    [
        (("-c", "/a"), ("-c", "/a"), None, None),
        (("-l", "x"), ("-c", "/b"), None, (CONFIG_TOML, "/b")),
        (("-c", "/a"), ("-l", "x"), None, ("/a", CONFIG_TOML)),
        (("-c", "/a"), (), None, None),
        (("-c", "/a"), ("-c", "/b"), MOVES, ()),
        (("-c", "/a"), ("-c", "/b"), NOT_STARTED, ("/a", "/b")),
    ],
)
def test_a_config_that_an_engine_reads_only_until_its_next_start_is_told(
    now: tuple[str, ...], later: tuple[str, ...], why: InstallerError | None, moves: tuple[str, ...] | None
) -> None:
    engine = replace(USUAL, started=Started(now), next_start=Started(later), not_restarted=why)
    said = moves and "configure containerd in {} (at its next start containerd.service gives it {})".format(
        *moves
    )

    found = [error.problem for error in explain_moving(engine)]

    assert found == ([] if moves is None else [said or "why"])
