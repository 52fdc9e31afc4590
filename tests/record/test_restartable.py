"""Whether a restart is ours to make, from what systemd says of a unit and /proc of the processes in it."""

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.containerd_effect import effect_of
from installer.decide.engines.crio_effect import effect as crio_effect
from installer.decide.facts import EngineFacts
from installer.decide.restarts import elsewhere
from installer.host.files import Host
from installer.host.processes import monitors_in_unit_of
from installer.host.unit_start import UnitStart
from installer.record.restartable import Restart, not_restarted, places_by_files

ROW = ENGINES["containerd"]
PLACES = {"root": "/srv/root", "state": "/run/containerd", "address": "/run/containerd/containerd.sock"}
SERVING = Effect({}, "runc", places=PLACES)
FACTS = EngineFacts(
    "containerd", ROW.config, None, None, (), ROW.socket, "containerd.service", serving=SERVING
)
# As GetAll of systemd 252 and 257 has it, of a unit that starts its service as it is.
UNIT: dict[str, Any] = {
    "ExecStart": [],
    "Environment": [],
    "EnvironmentFiles": [],
    "RootDirectory": "",
    "NeedDaemonReload": False,
    "RefuseManualStart": False,
    "RefuseManualStop": False,
    "KillMode": "process",
}
CGROUP = "0::/system.slice/containerd.service"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.under(PurePosixPath(tmp_path))


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
    found = not_restarted(host, FACTS, Restart(unit, process, now, later))
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


@pytest.mark.parametrize("mode", ["control-group", "mixed", "process", "none", ""])
def test_a_stop_that_ends_live_containers_is_refused(host: Host, proc: Path, mode: str) -> None:
    kills = mode in {"control-group", "mixed"}

    found = reason(host, process=proc / "10", changed={"KillMode": mode})

    assert (f"KillMode={mode}, and 3 shims of live containers run in it" in found) == kills
    assert bool(found) == kills
    assert not reason(host, changed={"KillMode": mode})


def test_places_that_files_give_are_those_without_a_flag() -> None:
    assert places_by_files(ROW, (), ("--root", "/x")) == {"state", "address"}
    assert places_by_files(ROW, ("--state=/x", "-a", "/y"), None) == {"root"}
    assert places_by_files(ROW, None, None) == frozenset()


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_config_that_moves_a_place_is_told_with_both_values(place: str) -> None:
    facts = replace(FACTS, places_by_files=frozenset(PLACES))
    after = Effect({}, "runc", places={**PLACES, place: "/new"})

    (found,) = elsewhere(facts, after)

    assert found.problem == (
        f"restart containerd (at its next start its config gives it the {place} /new, and it runs with "
        f"{PLACES[place]})"
    )
    assert not [*elsewhere(facts, SERVING)]
    assert not [*elsewhere(facts, Effect({}, "runc", places={**PLACES, place: f"{PLACES[place]}/"}))]
    assert not [*elsewhere(replace(facts, places_by_files=frozenset()), after)]
    assert not [*elsewhere(replace(facts, serving=None), after)]
    assert not [*elsewhere(facts, Effect({}, "runc"))]


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

    assert effect_of(dump).places == PLACES
    assert crio_effect(crio).places == {"root": "/srv/crio", "runroot": "/run/other", "listen": "/run/x.sock"}
    assert crio_effect({"crio": {"runtime": {"x": 1}}}).places == {}  # its defaults are commented out
