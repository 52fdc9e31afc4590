"""Whether an engine may be restarted or reloaded: what systemd 252 and 257 say of a unit, and /proc of it."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.containerd.effective import read_dump
from installer.engines.crio import read_effective
from installer.engines.reloading import explain_moved_places
from installer.engines.startup import (
    find_moves,
    find_refusals,
    places_by_files,
    unit_obstacle,
    unit_obstacles,
)
from installer.host.files import Host
from installer.host.processes import monitors_in_unit_of
from installer.host.systemd import UnitStart
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import EngineState, Started
from installer.model.options import Options, RestartMode
from tests.host.servers import FakeSystemd, FakeUnit
from tests.support.files import put
from tests.support.live import on_bus

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
CGROUP = "0::/system.slice/containerd.service"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.under(PurePosixPath(tmp_path))


def started(now: tuple[str, ...] | None, later: tuple[str, ...] | None) -> EngineState:
    first, next_start = (
        None if words is None else Started(words, program="/usr/bin/containerd") for words in (now, later)
    )
    return replace(FACTS, started=first, next_start=next_start)


def reason(
    host: Host,
    now: tuple[str, ...] | None = None,
    later: tuple[str, ...] | None = None,
    process: Path | None = None,
    *,
    changed: dict[str, Any] | None = None,
) -> str:
    """Return why an engine is not restarted, "" where it may be."""
    unit = UnitStart.of(UNIT | (changed or {}))
    found = next(find_refusals(host, started(now, later), unit, process), None)
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
    host: Host, now: tuple[str, ...] | None, later: tuple[str, ...] | None, said: str
) -> None:
    found = reason(host, now, later)

    assert said in found
    assert bool(said) == bool(found)


def test_drop_ins_that_the_next_start_of_a_crio_reads_elsewhere_are_told() -> None:
    words = [Started(each, program="/usr/bin/crio") for each in ((), ("--config-dir=/etc/crio/other.d",))]
    engine = replace(EngineState.usual(ENGINES["crio"]), started=words[0], next_start=words[1])

    (move,) = find_moves(engine)

    assert move == "--config-dir /etc/crio/other.d, and it runs with /etc/crio/crio.conf.d"
    assert not [*find_moves(replace(engine, started=words[1]))]


@pytest.mark.parametrize("what", ["RefuseManualStop", "RefuseManualStart"])
def test_a_unit_that_systemd_restarts_for_nobody_is_told(host: Host, what: str) -> None:
    assert f"containerd.service has {what}=yes" in reason(host, changed={what: True})
    assert "its unit containerd.service is masked" in reason(host, changed={"LoadState": "masked"})
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


@pytest.mark.parametrize("mode", ["control-group", "mixed", "process", ""])
def test_a_stop_that_ends_live_containers_is_refused(host: Host, proc: Path, mode: str) -> None:
    kills, changed = mode in {"control-group", "mixed"}, {"KillMode": mode}

    three, one = (reason(host, process=proc / pid, changed=changed) for pid in ("10", "13"))

    assert (f"KillMode={mode}, and 3 shims of live containers run in it" in three) == kills == bool(three)
    assert ("1 shim of live containers runs in it" in one) == kills
    assert not reason(host, changed=changed)


FLAG, TEXT, PROGRAM, LINK = (f"/opt/site/{name}" for name in ("flag", "text", "program", "link"))


def condition(kind: str, path: str = TEXT, *, negated: bool = False) -> dict[str, Any]:
    asserts = kind.startswith("Assert")
    setting = kind if asserts else f"Condition{kind}"
    return {"Asserts" if asserts else "Conditions": [(setting, False, negated, path, 0)]}


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
    "a link": (condition("PathIsSymbolicLink"), fails("ConditionPathIsSymbolicLink")),
    "a full directory": (condition("DirectoryNotEmpty", FLAG), fails("ConditionDirectoryNotEmpty", FLAG)),
    "an executable file": (condition("FileIsExecutable"), fails("ConditionFileIsExecutable")),
    "what is not about a path": (condition("KernelCommandLine", "nogpu"), ""),
}


@pytest.mark.parametrize(("changed", "lack"), NEEDS.values(), ids=NEEDS)
def test_what_a_unit_needs_and_would_not_find_is_told_and_the_rest_left_alone(
    host: Host, tmp_path: Path, changed: dict[str, Any], lack: str
) -> None:
    put(tmp_path, {PROGRAM: "#!/bin/sh\n"}, 0o755)
    put(tmp_path, {TEXT: "text", "/run/lock": ""})
    (tmp_path / LINK[1:]).symlink_to(TEXT)

    found = reason(host, changed=changed)

    assert found == (lack and f"restart containerd (containerd.service would not start it again: {lack})")


def test_places_that_files_give_are_those_without_a_flag() -> None:
    assert places_by_files(started((), ("--root", "/x"))) == {"state", "address"}
    assert places_by_files(started(("--state=/x", "-a", "/y"), None)) == {"root"}
    assert places_by_files(started(None, None)) == frozenset()


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
UNSEEN = "run with the host's pid namespace (hostPID: true), for its process cannot be seen from here"
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
        found = unit_obstacle(host, engine)

    told = f"{found.problem}; {found.remedy}" if found else ""
    assert told.startswith(said) if unit is None else told == said
    assert bool(told) == bool(said)


def test_only_engines_that_serve_and_are_reloaded_need_a_unit(host: Host) -> None:
    """A start is its owner's."""
    stopped = running("containerd", 7, unit=False)
    serves = replace(stopped, serving=SERVING)
    cases = [*((mode, serves) for mode in RestartMode), (RestartMode.AUTO, stopped)]

    needy = [mode for mode, each in cases if unit_obstacles(host, Options(restart_mode=mode), [each])]

    assert needy == [RestartMode.AUTO, RestartMode.WHEN_IDLE]
