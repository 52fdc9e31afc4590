"""What dockerd answers, by the docker SDK as we hold it: nobody's settings, one deadline, nothing unpacked."""

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.engines.docker.api import ask_info
from installer.engines.docker.verify_containers import remove_containers
from installer.engines.engine_api import NotServedError
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, Runtime
from tests.host.servers import answer, hang, serving

DEBIAN_12: dict[str, Any] = {
    "ServerVersion": "20.10.24+dfsg1",
    "Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "/opt/nvidia", "runtimeArgs": ["--debug"]}},
    "DefaultRuntime": "nvidia",
    "LiveRestoreEnabled": False,
}
LATER: dict[str, Any] = {
    "ServerVersion": "28.5.2",
    "Runtimes": {"kata": {"runtimeType": "io.containerd.kata.v2"}, "runc": {"path": "runc", "status": {}}},
    "DefaultRuntime": "runc",
    "LiveRestoreEnabled": True,
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
}


def http(content: object, status: str = "200 OK", header: str = "") -> bytes:
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    return f"HTTP/1.1 {status}\r\n{header}Content-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize("said", [DEBIAN_12, LATER], ids=["20.10", "28"])
def test_what_dockerd_serves_is_what_it_says(tmp_path: Path, said: dict[str, Any]) -> None:
    with serving(tmp_path / "docker.sock", answer(http(said))) as docker:
        found = ask_info(docker, timeout_s=5)

    dirs = tuple(map(PurePosixPath, said.get("CDISpecDirs", ())))
    tables = {name: {**table} for name, table in said["Runtimes"].items()}
    for table in tables.values():
        table.pop("status", None)
    assert found.version == said["ServerVersion"]
    assert found.serving == EffectiveConfig(
        {name: Runtime(table.get("path", ""), table) for name, table in tables.items()},
        said["DefaultRuntime"],
        cdi=bool(dirs) or None,
        cdi_dirs=dirs,
        live_restore=said["LiveRestoreEnabled"],
        settings={"live-restore": said["LiveRestoreEnabled"]},
    )


def drip(connection: socket.socket) -> None:
    connection.recv(65536)
    for byte in http(b"{}") * 9:
        connection.sendall(bytes([byte]))
        time.sleep(0.1)


@pytest.mark.parametrize("behave", [hang, drip])
def test_a_daemon_that_does_not_end_its_answer_is_left_at_the_deadline(
    tmp_path: Path, behave: Callable[[socket.socket], None]
) -> None:
    info_of_another(tmp_path)  # imports are no part of the deadline
    started = time.monotonic()

    with serving(tmp_path / "docker.sock", behave) as docker:
        for ask in (ask_info, remove):
            with pytest.raises(
                InstallerError, match=r"dockerd on .* within 0\.4 s|remove a container .*(timed out|in time)"
            ):
                ask(docker, timeout_s=0.4)

    assert time.monotonic() - started < 20


def read_peak_memory_kb() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def begin_to_count_peak_memory() -> int:
    """Makes the kernel forget the peak of this process, and returns its memory now in KB: proc(5), clear_refs."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return read_peak_memory_kb()


@pytest.mark.parametrize(
    ("begin", "more"),
    [(b"HTTP/1.0 200 OK\r\n\r\n[", b"0," * 50_000), (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)],
    ids=["body", "headers"],
)
def test_an_endless_answer_is_left_and_not_kept(tmp_path: Path, begin: bytes, more: bytes) -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(begin)
        while True:
            connection.sendall(more)

    info_of_another(tmp_path)
    threads = threading.active_count()
    before_kb = begin_to_count_peak_memory()

    with (
        serving(tmp_path / "docker.sock", behave) as docker,
        pytest.raises(InstallerError, match=r"more than 16 MB|within 1 s"),
    ):
        ask_info(docker, timeout_s=1)

    assert read_peak_memory_kb() - before_kb < 100 << 10
    assert threading.active_count() == threads


def remove(docker: Path, timeout_s: float) -> object:
    return remove_containers(docker, "ours", timeout_s=timeout_s)


def info_of_another(tmp_path: Path) -> None:
    with serving(tmp_path / "other.sock", answer(http(LATER))) as docker:
        ask_info(docker, timeout_s=5)


ROOTLESS = ["name=seccomp,profile=builtin", "name=rootless"]  # as moby's daemon/info_unix.go words it
SNAP = "/var/snap/docker/common/var-lib-docker"  # as its own bin/dockerd.sh sets it


@pytest.mark.parametrize(
    ("header", "said", "reason"),
    [
        # Podman 4.3.1 of Debian 12 said so.
        ("Libpod-Api-Version: 4.3.1\r\n", {}, "Podman answers on {}, and reads no daemon.json"),
        (
            "",
            {"SecurityOptions": ROOTLESS},
            "the dockerd on {} is rootless, its config is in its user's home",
        ),
        ("", {"DockerRootDir": SNAP}, "the dockerd on {} is that of the snap, which does not see our files"),
    ],
    ids=["podman", "rootless", "snap"],
)
def test_who_else_answers_the_api_of_docker_is_told_apart(
    tmp_path: Path, header: str, said: dict[str, Any], reason: str
) -> None:
    reply = http(LATER | said, header=header)

    with serving(tmp_path / "docker.sock", answer(reply)) as docker, pytest.raises(NotServedError) as refusal:
        ask_info(docker, timeout_s=5)

    assert refusal.value.reason == reason.format(docker)
    assert refusal.value.problem == f"configure Docker ({reason.format(docker)})"


def test_nothing_of_a_users_settings_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text(
        '{"auths": {"registry": {"auth": "no base64!"}}, "proxies": 1}'
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    not_found = http({"message": "No such container"}, "404 Not Found")

    with serving(tmp_path / "docker.sock", answer(not_found)) as docker:
        assert remove_containers(docker, "ours", timeout_s=5) == []
