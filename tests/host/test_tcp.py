"""Where a process listens over TCP, as the kernel tells of this one."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from installer.decide.errors import InstallerError
from installer.host import dockerd
from installer.host.tcp import TcpAddress, same_network, tcp_listening

OWN = Path("/proc/self")
INFO = {"Runtimes": {"gpu": {"path": "/opt/gpu"}}, "DefaultRuntime": "runc", "ServerVersion": "26.1.5"}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize(
    ("family", "place", "found"),
    [
        (socket.AF_INET, "127.0.0.1", "tcp://127.0.0.1"),
        (socket.AF_INET, "127.0.0.9", "tcp://127.0.0.9"),
        (socket.AF_INET, "0.0.0.0", "tcp://127.0.0.1"),  # noqa: S104 - that is the case
        (socket.AF_INET6, "::1", "tcp://[::1]"),
        (socket.AF_INET6, "::", "tcp://[::1]"),
    ],
)
def test_a_process_is_known_to_listen_by_what_it_holds_open(
    family: socket.AddressFamily, place: str, found: str
) -> None:
    with socket.create_server((place, 0), family=family) as server:
        port = server.getsockname()[1]

        assert f"{found}:{port}" in map(str, tcp_listening(OWN))

    assert f"{found}:{port}" not in map(str, tcp_listening(OWN))


def test_what_another_process_listens_on_is_not_its_own(listener: socket.socket) -> None:
    assert listener.getsockname()[1] not in [each.port for each in tcp_listening(Path("/proc/1"))]


def test_addresses_mean_the_same_in_one_network_namespace(tmp_path: Path) -> None:
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/net").symlink_to("net:[1]")

    assert same_network(OWN)
    assert not same_network(tmp_path)
    assert not same_network(tmp_path / "gone")


def test_a_dockerd_tells_over_tcp_what_it_serves(listener: socket.socket) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(65536).startswith(b"GET /info ")
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(INFO).encode())

    thread = Thread(target=answer)
    thread.start()
    said = dockerd.info(TcpAddress("127.0.0.1", listener.getsockname()[1]), timeout_s=5)
    thread.join()

    assert said.serving.binaries == {"gpu": "/opt/gpu"}


def test_a_dockerd_that_has_gone_is_told_by_its_address(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()

    with pytest.raises(InstallerError, match=f"tcp://127.0.0.1:{port}"):
        dockerd.info(TcpAddress("127.0.0.1", port), timeout_s=5)
