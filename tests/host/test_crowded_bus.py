"""A bus whose queue strangers keep full is waited for in that queue, and a stop ends the wait."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from installer.decide.errors import StoppedError
from installer.host.systemd import NoBusError, system_state
from installer.host.unit_jobs import restart_unit
from tests.host.servers import FakeSystemd, FakeUnit


@contextmanager
def _crowded(path: Path, systemd: FakeSystemd, *, until_s: float) -> Iterator[Path]:
    """Serve, with a queue that two strangers fill; nobody is let in before ``until_s`` is over."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        strangers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for stranger in strangers:
            stranger.setblocking(False)
            with suppress(BlockingIOError):
                stranger.connect(str(path))
        over = threading.Event()

        def serve() -> None:
            over.wait(until_s)
            with suppress(OSError):
                while not over.is_set():
                    connection, _ = listener.accept()
                    threading.Thread(target=_to_the_end, args=(systemd, connection), daemon=True).start()

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield path
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            server.join()
            for stranger in strangers:
                stranger.close()


def _to_the_end(systemd: FakeSystemd, connection: socket.socket) -> None:
    with connection, suppress(OSError):
        systemd(connection)


def test_a_crowded_bus_gives_the_same_result_later(tmp_path: Path) -> None:
    systemd = FakeSystemd({"containerd.service": FakeUnit()})

    with _crowded(tmp_path / "bus", systemd, until_s=1.2) as bus:
        restart_unit([bus], "containerd.service", timeout_s=10)

    assert systemd.units["containerd.service"].starts == 1


def test_a_bus_that_stays_crowded_is_left_at_the_deadline(tmp_path: Path) -> None:
    began = time.monotonic()

    with (
        _crowded(tmp_path / "bus", FakeSystemd(), until_s=60) as bus,
        pytest.raises(NoBusError, match=r"too many others connect to it\)?.*; mount the node's /run/systemd"),
    ):
        system_state([bus], timeout_s=1)

    assert 0.9 < time.monotonic() - began < 30


def test_a_stop_ends_the_wait_for_a_crowded_bus(tmp_path: Path) -> None:
    began = time.monotonic()

    def stopped() -> None:
        if time.monotonic() - began > 0.3:
            raise StoppedError

    with _crowded(tmp_path / "bus", FakeSystemd(), until_s=60) as bus, pytest.raises(StoppedError):
        restart_unit([bus], "containerd.service", timeout_s=60, check=stopped)

    assert time.monotonic() - began < 30


def test_a_bus_that_lets_in_and_never_answers_is_told_with_another_way(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "bus"))
        listener.listen(150)

        with pytest.raises(NoBusError, match=r"no answer in time\); mount the node's /run/systemd"):
            system_state([tmp_path / "bus"], timeout_s=0.5)
