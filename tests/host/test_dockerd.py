import json
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from installer.decide.errors import InstallerError
from installer.host.dockerd import DockerInfo, info
from tests.host.servers import answer, drip, hang, hang_up, serving

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


def http(content: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        pytest.param(
            DEBIAN_12,
            DockerInfo(
                {"runc": "runc", "nvidia": "/opt/nvidia"},
                "nvidia",
                "20.10.24+dfsg1",
                live_restore=False,
                cdi_spec_dirs=(),
            ),
            id="20.10",
        ),
        pytest.param(
            LATER,
            DockerInfo(
                {"kata": "", "runc": "runc"},
                "runc",
                "28.5.2",
                live_restore=True,
                cdi_spec_dirs=("/etc/cdi", "/var/run/cdi"),
            ),
            id="28",
        ),
    ],
)
def test_what_dockerd_serves_is_what_it_says(
    tmp_path: Path, said: dict[str, Any], understood: DockerInfo
) -> None:
    with serving(tmp_path / "docker.sock", answer(http(json.dumps(said).encode()))) as docker:
        assert info(docker, timeout_s=5) == understood


def test_dockerd_is_asked_without_an_api_version_and_without_a_password(
    tmp_path: Path,
) -> None:
    asked: list[bytes] = []

    def remember(connection: Any) -> None:
        asked.append(connection.recv(65536))
        connection.sendall(http(json.dumps(LATER).encode()))

    with serving(tmp_path / "docker.sock", remember) as docker:
        info(docker, timeout_s=5)

    assert asked == [b"GET /info HTTP/1.0\r\n\r\n"]


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        pytest.param(hang_up, "ask dockerd on .*docker.sock", id="hangs up"),
        pytest.param(
            answer(http(b"oops", "500 Internal Server Error")), r"500 Internal Server Error\)", id="error"
        ),
        pytest.param(answer(http(b"{")), "understand what answers", id="not json"),
        pytest.param(answer(http(b"[]")), "understand what answers", id="not an object"),
        pytest.param(answer(http(b"{}")), "understand what answers on .*'Runtimes'", id="not dockerd"),
        pytest.param(answer(b"\x00\x00\x06\x04"), "ask dockerd on", id="not http"),
    ],
)
def test_a_daemon_that_answers_badly_is_an_error(
    tmp_path: Path, behave: Callable[[Any], None], words: str
) -> None:
    with serving(tmp_path / "docker.sock", behave) as docker, pytest.raises(InstallerError, match=words):
        info(docker, timeout_s=5)


def test_a_daemon_that_never_answers_is_left_at_the_deadline(tmp_path: Path) -> None:
    info_of_another(tmp_path)  # imports are no part of the deadline
    started = time.monotonic()

    with serving(tmp_path / "docker.sock", hang) as docker, pytest.raises(InstallerError, match="dockerd"):
        info(docker, timeout_s=0.3)

    assert time.monotonic() - started < 0.8


def test_a_daemon_that_drips_is_left_at_the_deadline(tmp_path: Path) -> None:
    info_of_another(tmp_path)
    over = threading.Event()
    started = time.monotonic()

    with serving(tmp_path / "docker.sock", drip(http(b"{}") * 9, pause=over)) as docker:
        with pytest.raises(InstallerError, match=r"within 0\.4 s"):
            info(docker, timeout_s=0.4)
        took_s = time.monotonic() - started
        over.set()

    assert took_s < 0.8


def endless(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n[")
    while True:
        connection.sendall(b"0," * 50_000)


def endless_headers(connection: socket.socket) -> None:
    connection.recv(65536)
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


@pytest.mark.parametrize("behave", [endless, endless_headers], ids=["body", "headers"])
def test_an_endless_answer_is_left_and_not_kept(
    tmp_path: Path, behave: Callable[[socket.socket], None]
) -> None:
    info_of_another(tmp_path)
    before, threads = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, threading.active_count()

    with (
        serving(tmp_path / "docker.sock", behave) as docker,
        pytest.raises(InstallerError, match=r"more than 16 MB|within 1 s"),
    ):
        info(docker, timeout_s=1)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # in KB
    assert threading.active_count() == threads


def info_of_another(tmp_path: Path) -> None:
    with serving(tmp_path / "other.sock", answer(http(json.dumps(LATER).encode()))) as docker:
        info(docker, timeout_s=5)


def test_a_socket_may_be_named_relative_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with serving(Path("docker.sock"), answer(http(json.dumps(LATER).encode()))) as docker:
        assert info(docker, timeout_s=5).version == "28.5.2"


def test_without_a_socket_its_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(InstallerError, match=r"ask dockerd on .*absent.sock .*; check that dockerd runs"):
        info(tmp_path / "absent.sock", timeout_s=1)
