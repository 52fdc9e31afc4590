"""What systemd stops along with an engine, and which containers end with that: by systemd's words and /proc."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.observe import with_start
from installer.engines.stopped_units import MOST_UNITS
from installer.host import processes
from installer.model.engine import EngineState
from tests.host.servers import FakeSystemd, FakeUnit, hang, serving
from tests.support.files import put
from tests.support.live import UNIT_PROPERTIES, on_bus

SOCKET = PurePosixPath("/c.sock")
ENGINE = replace(EngineState.usual(ENGINES["containerd"]), socket=SOCKET)
MOBY = "run/containerd/io.containerd.runtime.v2.task/moby"


@dataclass(frozen=True)
class Service:
    """A unit with its main process, and what else has its cgroup."""

    words: str = "/usr/bin/thing"
    stops: Mapping[str, str] | None = None  # a unit that stops with it, by the property that says so
    active: str = "active"
    kill_mode: str = "process"
    beside: str = ""
    exec_stop: str = ""


def _systemd(units: Mapping[str, Service]) -> FakeSystemd:
    found = {}
    for pid, (name, service) in enumerate(units.items(), 61):
        said: dict[str, tuple[str, Any]] = {**UNIT_PROPERTIES, "KillMode": ("s", service.kill_mode)}
        said |= {key: ("as", [unit]) for key, unit in (service.stops or {}).items()}
        if service.exec_stop:
            words = shlex.split(service.exec_stop)
            command = (words[0], words, False, 0, 0, 0, 0, 0, 0, 0)
            said["ExecStop"] = ("a(sasbttttuii)", [command])
        found[name] = FakeUnit(active=service.active, main_pid=pid, properties=said)
    return FakeSystemd(found)


def _proc(root: Path, units: Mapping[str, Service]) -> None:
    def process(pid: int, unit: str, words: str) -> None:
        name = words.split(maxsplit=1)[0].rpartition("/")[2]
        said = {
            "comm": f"{name[:15]}\n",
            "cgroup": f"0::/system.slice/{unit}\n",
            "cmdline": words.replace(" ", "\0") + "\0",
            "stat": f"{pid} ({name[:15]}) S 1 1 1 0\n",
        }
        put(root, {f"proc/{pid}/{file}": text for file, text in said.items()})

    for pid, (unit, service) in enumerate(units.items(), 61):
        process(pid, unit, service.words)
        if service.beside:
            process(pid + 100, unit, service.beside)


def _find_restarted(root: Path, units: Mapping[str, Service]) -> list[tuple[str, str, str]]:
    _proc(root, units)
    with on_bus(root, _systemd(units)) as host:
        found = with_start(host, ENGINE).restarted_units
    return [(unit.name, unit.setting, unit.live_restore_key) for unit in found]


def _find_reason(root: Path, units: Mapping[str, Service], *, listens: bool = True) -> str:
    _proc(root, units)
    with on_bus(root, _systemd(units)) as host:
        if listens:
            with serving(root / SOCKET.name, hang):
                found = with_start(host, ENGINE).not_restarted
        else:
            found = with_start(host, ENGINE).not_restarted
    return found.problem if found else ""


def _after(**stops: str) -> Service:
    return Service("/usr/bin/containerd", stops)


DOCKERD = Service("/usr/bin/dockerd")
WEB = Service("/usr/bin/docker run --rm web")
QUADLET = Service("/usr/bin/conmon -c feed", kill_mode="mixed", beside="/usr/bin/conmon -c feed")
SAID = "systemd stops with it {}, which has {}, and that ends {})"
ENDED = {
    "a docker run": (
        {"containerd.service": _after(RequiredBy="web.service"), "web.service": WEB},
        SAID.format("web.service", "Requires=containerd.service", "the container of its docker run"),
    ),
    "a docker run of a shell": (
        {
            "containerd.service": _after(RequiredBy="web.service"),
            "web.service": Service("/bin/sh -c docker", beside="/usr/bin/docker run --rm web"),
        },
        SAID.format("web.service", "Requires=containerd.service", "the container of its docker run"),
    ),
    "one that stops with another": (
        {
            "containerd.service": _after(BoundBy="site.service"),
            "site.service": Service(stops={"ConsistsOf": "web.service"}),
            "web.service": WEB,
        },
        SAID.format("web.service", "PartOf=site.service", "the container of its docker run"),
    ),
    "its own monitors": (
        {"containerd.service": _after(PropagatesStopTo="app.service"), "app.service": QUADLET},
        SAID.format(
            "app.service",
            "StopPropagatedFrom=containerd.service",
            "2 shims of live containers (KillMode=mixed)",
        ),
    ),
    "a dockerd that does not tell": (
        {"containerd.service": _after(RequisiteOf="docker.service"), "docker.service": DOCKERD},
        SAID.format(
            "docker.service",
            "Requisite=containerd.service",
            "2 containers, unless it has live-restore, which it does not tell now",
        ),
    ),
}
NOT_ENDED = {
    "none": {"containerd.service": _after()},
    "nothing that holds any": {
        "containerd.service": _after(RequiredBy="kubelet.service"),
        "kubelet.service": Service("/usr/bin/kubelet --config /etc/kubelet.yaml"),
    },
    "what a stop leaves": {
        "containerd.service": _after(RequiredBy="app.service"),
        "app.service": Service(beside="/usr/bin/conmon -c feed"),
    },
    "one that is down": {
        "containerd.service": _after(RequiredBy="site.service"),
        "site.service": Service(stops={"RequiredBy": "web.service"}, active="inactive"),
        "web.service": WEB,
    },
    "a circle": {
        "containerd.service": _after(RequiredBy="site.service"),
        "site.service": Service(stops={"ConsistsOf": "containerd.service"}),
    },
}


# The service itself has no process any more: a oneshot with RemainAfterExit.
STOP_COMMANDS = {
    "docker rm": ("/usr/bin/docker rm -f web", "docker rm"),
    "docker compose": ("/usr/bin/docker compose -f /opt/web/compose.yaml down", "docker compose down"),
    "docker-compose": ("/usr/local/bin/docker-compose stop", "docker-compose stop"),
    "a task of ctr": ("/usr/bin/ctr -n app task kill web", "ctr kill"),
    "a shell": ("/bin/sh -c 'sync; docker stop $(docker ps -q)'", "docker stop"),
    "a script": ("/opt/web/stop now", "nerdctl rm"),
    "podman": ("/usr/bin/podman stop web", "podman stop"),
}
HARMLESS = {
    "true": "/bin/true",
    "iptables": "/usr/sbin/iptables -D FORWARD -j MINE",
    "images": "/usr/bin/docker image rm old",
    "networks": "/usr/bin/docker network rm web",
    "a listing": "/bin/sh -c 'docker ps > /var/log/containers; kill 1234'",
    "a script": "/opt/web/flush",
    "a comment": "/opt/web/comment",
}
SCRIPTS = {
    "opt/web/stop": "#!/bin/sh\nset -e\nnerdctl -n app rm -f web\n",
    "opt/web/flush": "#!/bin/sh\nnft flush ruleset\n",
    "opt/web/comment": "#!/bin/sh\n# once: docker rm -f web\nexit 0\n",
}


def _with_stop_command(command: str) -> dict[str, Service]:
    return {
        "containerd.service": _after(ConsistsOf="web.service"),
        "web.service": Service("/bin/gone", exec_stop=command),
    }


@pytest.mark.parametrize(("command", "said"), STOP_COMMANDS.values(), ids=STOP_COMMANDS)
def test_a_restart_is_refused_if_a_unit_that_stops_along_ends_containers_by_its_exec_stop(
    tmp_path: Path, command: str, said: str
) -> None:
    put(tmp_path, {**SCRIPTS, f"{MOBY}/a1/config.json": "{}"})
    client, *_, verb = said.split()

    reason = _find_reason(tmp_path, _with_stop_command(command))

    loss = f"the container of its ExecStop ({client} {verb})"
    assert reason == f"restart containerd ({SAID.format('web.service', 'PartOf=containerd.service', loss)}"


@pytest.mark.parametrize("command", HARMLESS.values(), ids=HARMLESS)
def test_an_exec_stop_that_ends_no_container_keeps_nothing_from_a_restart(
    tmp_path: Path, command: str
) -> None:
    put(tmp_path, {**SCRIPTS, f"{MOBY}/a1/config.json": "{}"})

    assert not _find_reason(tmp_path, _with_stop_command(command))


def test_an_exec_stop_of_docker_keeps_nothing_from_a_restart_while_docker_has_no_container(
    tmp_path: Path,
) -> None:
    put(tmp_path, {f"{MOBY.replace('moby', 'k8s.io')}/a1/config.json": "{}"})

    assert not _find_reason(tmp_path, _with_stop_command("/usr/bin/docker rm -f web"))


@pytest.mark.parametrize("listens", [True, False], ids=["answers", "down"])
@pytest.mark.parametrize(("units", "said"), ENDED.values(), ids=ENDED)
def test_a_restart_that_ends_containers_of_other_units_is_refused(
    tmp_path: Path, units: Mapping[str, Service], said: str, *, listens: bool
) -> None:
    put(tmp_path, {f"{MOBY}/{each}/config.json": "{}" for each in ("a1", "b2")})

    assert _find_reason(tmp_path, units, listens=listens) == f"restart containerd ({said}"


@pytest.mark.parametrize("units", NOT_ENDED.values(), ids=NOT_ENDED)
def test_units_without_containers_keep_nothing_from_a_restart(
    tmp_path: Path, units: Mapping[str, Service]
) -> None:
    assert not _find_reason(tmp_path, units)


SPECIFICATION = "cdiVersion: 0.6.0\nkind: vendor.com/x\n"
CRASH = "Docker itself, which cannot start: {} has the kind vendor.com/x, with a vendor or class of one letter, which crashes it"


@pytest.mark.parametrize(
    ("flags", "config", "path"),
    [
        pytest.param("--feature=cdi=true", None, "/etc/cdi/x.yaml", id="flag"),
        pytest.param("--feature cdi=1", None, "/var/run/cdi/x.json", id="another directory"),
        pytest.param("", {"features": {"cdi": True}}, "/etc/cdi/x.yaml", id="daemon.json"),
        pytest.param(
            "--feature=cdi=true --cdi-spec-dir=/a --cdi-spec-dir /b",
            None,
            "/b/x.yaml",
            id="flag for a directory",
        ),
        pytest.param(
            "",
            {"features": {"cdi": True}, "cdi-spec-dirs": ["/b"]},
            "/b/x.yaml",
            id="directory in daemon.json",
        ),
    ],
)
def test_a_dockerd_that_a_cdi_specification_would_crash_is_not_restarted_along(
    tmp_path: Path, flags: str, config: Mapping[str, Any] | None, path: str
) -> None:
    put(tmp_path, {path[1:]: SPECIFICATION})
    if config is not None:
        put(tmp_path, {"etc/docker/daemon.json": json.dumps(config)})
    docker = Service(f"/usr/bin/dockerd {flags}")

    reason = _find_reason(
        tmp_path, {"containerd.service": _after(RequiredBy="docker.service"), "docker.service": docker}
    )

    assert CRASH.format(path) in reason


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        pytest.param("--feature=cdi=false", "/etc/cdi/x.yaml", id="switched off"),
        pytest.param("--feature=cdi=true --cdi-spec-dir=/b", "/etc/cdi/x.yaml", id="another directory"),
        pytest.param("", "/etc/cdi/x.yaml", id="of an unknown version"),
    ],
)
def test_a_cdi_specification_that_dockerd_does_not_read_keeps_nothing_from_a_restart(
    tmp_path: Path, flags: str, path: str
) -> None:
    put(tmp_path, {path[1:]: SPECIFICATION})
    docker = Service(f"/usr/bin/dockerd {flags}")

    assert not _find_reason(
        tmp_path, {"containerd.service": _after(RequiredBy="docker.service"), "docker.service": docker}
    )


def test_a_dockerd_without_a_shim_has_no_container_to_lose(tmp_path: Path) -> None:
    units = {"containerd.service": _after(RequiredBy="docker.service"), "docker.service": DOCKERD}

    assert not _find_reason(tmp_path, units)


@pytest.mark.parametrize(
    ("kill_mode", "said"),
    [
        ("mixed", "perhaps live containers (KillMode=mixed; "),
        ("process", "perhaps the container of a client"),
    ],
)
def test_a_unit_may_hold_containers_if_not_all_processes_can_be_looked_at_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_mode: str, said: str
) -> None:
    units = {"containerd.service": _after(RequiredBy="u.service"), "u.service": Service(kill_mode=kill_mode)}
    monkeypatch.setattr(processes, "LOOK_S", -1.0)

    reason = _find_reason(tmp_path, units)

    assert said in reason
    assert "not all processes can be looked at within 2 s" in reason


def test_systemd_is_asked_for_so_many_units_and_no_more(tmp_path: Path) -> None:
    names = ["containerd.service", *(f"u{number}.service" for number in range(2 * MOST_UNITS))]
    units = {name: Service(stops={"RequiredBy": later}) for name, later in pairwise(names)}
    fake = _systemd(units)

    with on_bus(tmp_path, fake) as host, serving(tmp_path / SOCKET.name, hang):
        assert with_start(host, ENGINE).not_restarted is None

    assert fake.calls.count("GetAll") <= MOST_UNITS + 2


def test_active_units_are_restarted_with_the_engine_and_no_others(tmp_path: Path) -> None:
    units = {
        "containerd.service": Service(
            stops={
                "BoundBy": "site.service",
                "RequiredBy": "down.service",
                "ConsistsOf": "crashing.service",
                "PropagatesStopTo": "stopped.service",
            }
        ),
        "site.service": Service(stops={"ConsistsOf": "app.service"}),
        "app.service": Service(),
        "down.service": Service(active="failed"),
        "crashing.service": Service(active="activating"),
        "stopped.service": Service(),
    }

    assert _find_restarted(tmp_path, units) == [
        ("site.service", "BindsTo=containerd.service", ""),
        ("app.service", "PartOf=site.service", ""),
    ]
