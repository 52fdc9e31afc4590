"""Whether an engine may be restarted or reloaded: what systemd 252 and 257 say of a unit, and /proc of it."""

import dataclasses
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.containerd.effective import read_dump
from installer.engines.crio import read_effective
from installer.engines.reloading import explain_moved_places
from installer.engines.startup import (
    find_refusals,
    places_by_files,
    unit_obstacle,
    unit_obstacles,
)
from installer.host.files import Host
from installer.host.processes import monitors_in_unit_of
from installer.host.systemd import UnitStart
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import EngineState, Started, count
from installer.model.options import Options, RestartMode
from tests.host.servers import FakeSystemd, FakeUnit, serving

ROW = ENGINES["containerd"]
PLACES = {"root": "/srv/root", "state": "/run/containerd", "address": "/run/containerd/containerd.sock"}
SERVING = EffectiveConfig({}, "runc", places=PLACES)
FACTS = EngineState(
    "containerd", ROW.config, None, None, (), ROW.socket, "containerd.service", serving=SERVING
)
# As GetAll of systemd 252 and 257 has it, of a unit that starts its service as it is.
UNIT: dict[str, Any] = {
    "LoadState": "loaded",
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
    words = (
        None if words is None else Started(words, program="/usr/bin/containerd") for words in (now, later)
    )
    return replace(FACTS, **dict(zip(("started", "next_start"), words, strict=True)))


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
        (("-c", "/opt/x"), (), "gives it --config /etc/containerd/config.toml, and it runs with /opt/x"),
        (None, ("--state", "/run/x"), "gives it --state /run/x, and it runs with /run/containerd"),
        ((), (), ""),
        ((), ("--root", "/srv/root/", "--config=/etc/containerd/config.toml"), ""),
        (("--root", "/x"), ("--root=/x", "--log-level", "debug"), ""),
        (None, ("--config", "/opt/x"), ""),
        (None, None, ""),
        (("--root", "/x"), None, ""),
    ],
)
def test_places_that_the_next_start_has_elsewhere_are_told_with_both_values(
    host: Host, now: tuple[str, ...] | None, later: tuple[str, ...] | None, said: str
) -> None:
    found = reason(host, now, later)

    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize("what", ["RefuseManualStop", "RefuseManualStart"])
def test_a_unit_that_systemd_restarts_for_nobody_is_told(host: Host, what: str) -> None:
    assert f"containerd.service has {what}=yes" in reason(host, changed={what: True})
    assert not reason(host)


def monitor(process: Path, *words: str, parent: int = 1) -> None:
    """Write what /proc has of a conmon."""
    process.mkdir(parents=True)
    (process / "cmdline").write_text("".join(f"{word}\0" for word in ("/usr/bin/conmon", *words)))
    (process / "stat").write_text(f"{process.name} (conmon) S {parent} 18 18 0 -1\n")
    (process / "comm").write_text("conmon\n")
    (process / "cgroup").write_text(f"{CGROUP}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc as the kernel has it: an engine, what it started, and who is in another unit."""
    seen = {
        10: ("containerd", CGROUP),
        11: ("containerd-shim", CGROUP),
        12: ("containerd-shim", f"{CGROUP}/below"),
        13: ("containerd-shim", "0::/system.slice/docker.service"),
        14: ("containerd-shim", "0::/kubepods/pod1/shim"),
        15: ("containerd-shim", "0::/system.slice/docker-1.scope/system.slice/containerd.service"),
        16: ("pause", CGROUP),
    }
    monitor(tmp_path / "proc/17", "-c", "feed")
    for pid, (name, cgroup) in seen.items():
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text(f"{name}\n")
        (tmp_path / f"proc/{pid}/cgroup").write_text(f"{cgroup}\n")
    (tmp_path / "proc/sys").mkdir()
    return tmp_path / "proc"


def test_only_monitors_in_the_units_own_cgroup_go_with_it(proc: Path) -> None:
    assert monitors_in_unit_of(proc / "10") == 3
    assert monitors_in_unit_of(proc / "13") == 1
    assert monitors_in_unit_of(proc / "14") == 0
    assert monitors_in_unit_of(proc / "99") == 0


@pytest.mark.parametrize(
    ("words", "parent", "counts"),
    [
        pytest.param(("-c", "feed", "-n", "app", "-e", "--sync"), 10, False, id="an exec's"),
        pytest.param(("-c", "feed", "-e"), 1, False, id="an exec's of a conmon without --sync"),
        pytest.param(("-b", "/run/feed", "-c", "feed"), 10, False, id="of a container that is being made"),
        pytest.param(("-b", "/run/feed", "-c", "feed"), 1, True, id="a live container's"),
        pytest.param(("-b", "/run/feed", "-n", "-exec"), 1, True, id="a live container's of such a name"),
    ],
)
def test_a_conmon_that_holds_no_container_is_not_counted(
    proc: Path, words: tuple[str, ...], parent: int, *, counts: bool
) -> None:
    before = monitors_in_unit_of(proc / "10")
    monitor(proc / "18", *words, parent=parent)

    assert monitors_in_unit_of(proc / "10") - before == counts


def test_one_shim_is_no_shims() -> None:
    assert [count(number, "shim") for number in (0, 1, 2)] == ["0 shims", "1 shim", "2 shims"]


@pytest.mark.parametrize("mode", ["control-group", "mixed", "process", "none", ""])
def test_a_stop_that_ends_live_containers_is_refused(host: Host, proc: Path, mode: str) -> None:
    kills = mode in {"control-group", "mixed"}

    found = reason(host, process=proc / "10", changed={"KillMode": mode})

    assert (f"KillMode={mode}, and 3 shims of live containers run in it" in found) == kills
    assert bool(found) == kills
    assert not reason(host, changed={"KillMode": mode})


FLAG = "/opt/site/flag"


def condition(
    kind: str, path: str = FLAG, *, either: bool = False, negated: bool = False
) -> tuple[str, bool, bool, str, int]:
    return (kind, either, negated, path, 0)


@pytest.fixture
def site(host: Host, tmp_path: Path) -> Host:
    for name in ("opt/site/program", "opt/site/text", "opt/site/empty", "run/lock"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "opt/site/empty" else "#!/bin/sh\n")
        path.chmod(0o755 if name.endswith("program") else 0o644)
    (tmp_path / "opt/site/link").symlink_to("/opt/site/text")
    return host


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"EnvironmentFiles": [(FLAG, False)]}, "its EnvironmentFile /opt/site/flag is not there"),
        ({"ExecStart": [(FLAG, [FLAG], False)]}, "its ExecStart /opt/site/flag is no program"),
        ({"ExecStart": [(FLAG, ["/opt/site/text"], False)]}, "its ExecStart /opt/site/text is no program"),
        ({"ExecStartPre": [(FLAG, [FLAG], False)]}, "its ExecStartPre /opt/site/flag is no program"),
        ({"Conditions": [condition("ConditionPathExists")]}, f"ConditionPathExists={FLAG} does not hold"),
        ({"Asserts": [condition("AssertPathExists")]}, f"AssertPathExists={FLAG} does not hold"),
        (
            {"Conditions": [condition("ConditionPathExists", "/opt/site/text", negated=True)]},
            "ConditionPathExists=!/opt/site/text does not hold",
        ),
        (
            {"Conditions": [condition("ConditionPathIsDirectory", "/opt/site/text")]},
            "ConditionPathIsDirectory=/opt/site/text does not hold",
        ),
        (
            {"Conditions": [condition("ConditionPathIsSymbolicLink", "/opt/site/text")]},
            "ConditionPathIsSymbolicLink=/opt/site/text does not hold",
        ),
        (
            {"Conditions": [condition("ConditionDirectoryNotEmpty")]},
            f"ConditionDirectoryNotEmpty={FLAG} does not hold",
        ),
        (
            {"Conditions": [condition("ConditionFileNotEmpty", "/opt/site/empty")]},
            "ConditionFileNotEmpty=/opt/site/empty does not hold",
        ),
        (
            {"Conditions": [condition("ConditionFileIsExecutable", "/opt/site/text")]},
            "ConditionFileIsExecutable=/opt/site/text does not hold",
        ),
    ],
)
def test_what_a_unit_needs_and_would_not_find_is_told(site: Host, changed: dict[str, Any], said: str) -> None:
    assert f"containerd.service would not start it again: {said})" in reason(site, changed=changed)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({}, id="all is there"),
        pytest.param({"EnvironmentFiles": [(FLAG, True)]}, id="a file that may be absent"),
        pytest.param({"EnvironmentFiles": [("/opt/site/*.env", False)]}, id="a pattern"),
        pytest.param(
            {"ExecStartPre": [("/usr/bin/test", ["/opt/site/program", "-f", FLAG], False)]},
            id="a test of a file",
        ),
        pytest.param({"ExecStartPre": [(FLAG, [FLAG], True)]}, id="a command that may fail"),
        pytest.param({"ExecStart": [("containerd", ["containerd"], False)]}, id="a word"),
        pytest.param({"ExecStart": [(FLAG, [FLAG], False)], "RootDirectory": "/srv"}, id="another root"),
        pytest.param(
            {"Conditions": [condition("ConditionKernelCommandLine", "nogpu")]}, id="not about a path"
        ),
        pytest.param(
            {
                "Conditions": [
                    condition("ConditionPathExists", either=True),
                    condition("ConditionPathExists", "/opt/site/link", either=True),
                ]
            },
            id="one of two",
        ),
        pytest.param(
            {"Conditions": [condition("ConditionPathExists", "/run/lock", negated=True)]},
            id="the service's own lock",
        ),
        pytest.param(
            {"Conditions": [condition("ConditionPathIsSymbolicLink", "/opt/site/link")]}, id="a link"
        ),
    ],
)
def test_what_would_start_or_cannot_be_judged_is_left_alone(site: Host, changed: dict[str, Any]) -> None:
    assert reason(site, changed=changed) == ""


def test_places_that_files_give_are_those_without_a_flag() -> None:
    assert places_by_files(started((), ("--root", "/x"))) == {"state", "address"}
    assert places_by_files(started(("--state=/x", "-a", "/y"), None)) == {"root"}
    assert places_by_files(started(None, None)) == frozenset()


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_config_that_moves_a_place_is_told_with_both_values(place: str) -> None:
    facts = replace(FACTS, places_by_files=frozenset(PLACES))
    after = EffectiveConfig({}, "runc", places={**PLACES, place: "/new"})

    (found,) = explain_moved_places(facts, after)

    assert found.problem == (
        f"restart containerd (at its next start its config gives it the {place} /new, and it runs with "
        f"{PLACES[place]})"
    )
    assert not [*explain_moved_places(facts, SERVING)]
    assert not [
        *explain_moved_places(
            facts, EffectiveConfig({}, "runc", places={**PLACES, place: f"{PLACES[place]}/"})
        )
    ]
    assert not [*explain_moved_places(replace(facts, places_by_files=frozenset()), after)]
    assert not [*explain_moved_places(replace(facts, serving=None), after)]
    assert not [*explain_moved_places(facts, EffectiveConfig({}, "runc"))]


def test_crio_and_containerd_print_where_they_are() -> None:
    crio: dict[str, Any] = {
        "crio": {
            "root": "/srv/crio",
            "runroot": "/run/other",
            "api": {"listen": "/run/x.sock"},
            "runtime": {"x": 1},
        }
    }
    dump: dict[str, Any] = {
        "root": "/srv/root",
        "state": "/run/containerd",
        "grpc": {"address": "/run/containerd/containerd.sock"},
        "plugins": {"io.containerd.grpc.v1.cri": {"containerd": {"default_runtime_name": "runc"}}},
    }

    assert read_dump(dump).places == PLACES
    assert read_effective(crio).places == {
        "root": "/srv/crio",
        "runroot": "/run/other",
        "listen": "/run/x.sock",
    }
    assert read_effective({"crio": {"runtime": {"x": 1}}}).places == {}  # its defaults are commented out


WELL = FakeUnit(can_reload=True)
REACHED = "run it as a systemd service, or configure it unverified with --restart-mode none"
UNSEEN = "run with the host's pid namespace (hostPID: true), for its process cannot be seen from here"


def running(name: str, pid: int | None, *, unit: bool = True) -> EngineState:
    row = ENGINES[name]
    return EngineState(name, row.config, None, None, (), row.socket, row.unit if unit else "", pid=pid)


def refusal(root: Path, engine: EngineState, unit: FakeUnit | None) -> str:
    with ExitStack() as held:
        if unit is not None:
            (root / "run/dbus").mkdir(parents=True)
            systemd = FakeSystemd({engine.unit: unit})
            held.enter_context(serving(root / "run/dbus/system_bus_socket", systemd))
        found = unit_obstacle(Host.under(PurePosixPath(root)), engine)
    return f"{found.problem}; {found.remedy}" if found else ""


@pytest.mark.parametrize(
    ("engine", "unit", "said"),
    [
        # Restarted by systemd.
        (running("containerd", 7), FakeUnit(), ""),
        (running("containerd", None), FakeUnit(), ""),
        (
            running("containerd", 7, unit=False),
            FakeUnit(),
            f"restart containerd (it runs outside any systemd service); {REACHED}",
        ),
        (
            running("containerd", None, unit=False),
            FakeUnit(),
            f"restart containerd (it runs outside any systemd service); {UNSEEN}",
        ),
        (
            running("containerd", 7),
            FakeUnit(active="failed", sub="failed"),
            "restart containerd (its unit containerd.service is failed, so something else serves); "
            + REACHED,
        ),
        # Signalled, by its unit where its process is not seen.
        (running("docker", 7), None, ""),
        (running("docker", 7, unit=False), None, ""),
        (running("docker", None), WELL, ""),
        (
            running("docker", None),
            FakeUnit(),
            f"reload Docker (its unit docker.service has no ExecReload); {UNSEEN}",
        ),
        (
            running("docker", None),
            dataclasses.replace(WELL, active="inactive"),
            f"reload Docker (its unit docker.service is inactive, so something else serves); {UNSEEN}",
        ),
        # It restarts itself.
        (running("k0s", 7, unit=False), None, ""),
        (running("k0s", None), FakeUnit(active="failed"), ""),
    ],
)
def test_why_an_engine_could_not_be_reloaded(
    tmp_path: Path, engine: EngineState, unit: FakeUnit | None, said: str
) -> None:
    assert refusal(tmp_path, engine, unit) == said


def test_a_systemd_that_nobody_reaches_is_the_reason(tmp_path: Path) -> None:
    assert refusal(tmp_path, running("containerd", 7), None).startswith("reach systemd")
    assert refusal(tmp_path, running("docker", None), None).startswith("reload Docker (reach systemd")


@pytest.mark.parametrize(
    ("mode", "serves", "told"),
    [
        (RestartMode.AUTO, True, 1),
        (RestartMode.WHEN_IDLE, True, 1),
        (RestartMode.NONE, True, 0),
        (RestartMode.AUTO, False, 0),  # a start is its owner's
    ],
)
def test_only_engines_that_serve_and_are_reloaded_need_a_unit(
    tmp_path: Path, mode: RestartMode, told: int, *, serves: bool
) -> None:
    engine = replace(
        running("containerd", 7, unit=False), serving=EffectiveConfig({}, "runc") if serves else None
    )

    found = unit_obstacles(
        Host.under(PurePosixPath(tmp_path)), replace(Options(), restart_mode=mode), [engine]
    )

    assert len(found) == told
