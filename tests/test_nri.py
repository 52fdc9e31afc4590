"""The NRI plugin as a process: small, alone, back at once, and truthful about what it has missed."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from installer.nri import plugin as nri_plugin
from installer.nri import session
from installer.nri.session import unpack
from tests.host.servers import message
from tests.support.nri import ALLOW, WISH, Engine, Place, container, pod
from tests.support.site import sentence
from tests.support.waiting import until_told

PSS_KB = 12 * 1024
BACK_S = 0.1
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1])


def _events(place: Place) -> list[str]:
    return [json.loads(line)["event"] for line in place.log.read_text().splitlines()]


def test_it_registers_gives_devices_and_leaves_nothing(place: Place) -> None:
    with Engine(place.socket) as engine, place.plugin() as child:
        plugin = engine.accept()
        assert plugin.register() == {"name": "toolkit-installer", "index": "10"}
        given, refused, plain = plugin.create(WISH), plugin.create(WISH, "default"), plugin.create({})
        until_told(place.log, "container refused")
        said = place.call("status")
        child.terminate()

        assert child.wait(10) == 0
    adjust = unpack(session.CREATED, given["payload"])["adjust"]
    assert adjust["devices"] == [{"name": "management.nvidia.com/gpu=all"}]
    assert (refused["status"]["code"], refused["payload"]) == (session.PERMISSION_DENIED, b"")
    assert (plain["status"]["code"], plain["payload"]) == (0, b"")
    assert _events(place) == [
        "NRI plugin registered",
        "devices given",
        "container refused",
        "NRI plugin stopped",
    ]
    assert "NRI plugin  registered with containerd 2.1.9, since 20" in said.stdout
    assert [each.name for each in place.directory.iterdir()] == ["nri.sock"]


def test_each_answer_goes_in_frames_that_an_engine_can_read(place: Place) -> None:
    names = ",".join(f"management.nvidia.com/gpu={number}" for number in range(1000))

    with Engine(place.socket) as engine, place.plugin():
        plugin = engine.plugged()
        answer = plugin.create({"nvidia.cdi.k8s.io/pod": names})

    assert len(answer["payload"]) > 20_000
    assert plugin.longest == 4096


def _back_s(place: Place) -> float:
    """Return in how many seconds the plugin comes to an engine that begins to listen, and stays for a while."""
    with Engine(place.socket) as engine:
        began = time.monotonic()
        engine.plugged()
        took_s = time.monotonic() - began
        time.sleep(nri_plugin.STEADY_S + 0.1)
    return took_s


def _has_decided(took: list[float]) -> bool:
    """Tell whether two of three have the same answer: a busy machine may be late once, and luck quick once."""
    quick = sum(each < BACK_S for each in took)
    return max(quick, len(took) - quick) == 2


def test_it_is_back_as_soon_as_an_engine_listens_again(place: Place) -> None:
    took = list[float]()
    with place.plugin():
        while not _has_decided(took):
            with Engine(place.socket) as engine:
                engine.plugged()
                time.sleep(nri_plugin.STEADY_S + 0.1)
            time.sleep(nri_plugin.SOON_FOR_S + 0.2)  # nobody dials often any more
            took.append(_back_s(place))

    assert sum(each < BACK_S for each in took) == 2, took


def test_an_engine_that_takes_it_in_its_last_moment_does_not_keep_it_from_the_next_one(place: Place) -> None:
    took = list[float]()
    with place.plugin():
        while not _has_decided(took):
            with Engine(place.socket) as engine:
                engine.plugged().hang_up()
                engine.accept().hang_up()
            time.sleep(0.05)
            took.append(_back_s(place))

    assert sum(each < BACK_S for each in took) == 2, took


def test_an_engine_in_a_directory_that_is_made_anew_is_found_again(place: Place) -> None:
    with place.plugin() as child:
        with Engine(place.socket) as engine:
            engine.plugged()
        until_told(place.log, "not registered")
        time.sleep(0.2)  # it has told status
        for path in (*place.directory.iterdir(), place.directory):
            path.rmdir() if path.is_dir() else path.unlink()
        time.sleep(0.1)
        place.directory.mkdir()
        with Engine(place.socket) as engine:
            engine.plugged()

        assert child.poll() is None


def test_what_was_missed_is_named_in_the_log_and_by_status(place: Place) -> None:
    existing = message((1, pod(WISH)), (2, container()), (2, container("side")))

    with Engine(place.socket) as engine, place.plugin():
        engine.plugged(existing)
        log = until_told(place.log, "containers missed")
        said = place.call("status")

    assert json.loads(log.splitlines()[-1])["containers"] == ["operator/pod/main"]
    assert "1 containers run without the devices that their pods ask for (operator/pod/main)" in said.stdout
    assert said.returncode == 1


LOT = ",".join(
    f"management.nvidia.com/gpu={'x' * 900}{number}" for number in range(250)
)  # of an annotation's 256 KiB
LINE_BYTES = 4096


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param(LOT, id="many that are allowed"),
        pytest.param(f"{'k' * 250_000}.b/c=0", id="a long kind"),
    ],
)
def test_what_a_tenant_writes_makes_no_line_and_no_state_long(place: Place, wish: str) -> None:
    wishes = {"nvidia.cdi.k8s.io/pod": wish}
    existing = message((1, pod(wishes)), *[(2, container(f"c{number}")) for number in range(150)])

    with Engine(place.socket) as engine, place.plugin():
        plugin = engine.plugged(existing)
        answer = plugin.create(wishes)
        until_told(place.log, "container refused" if answer["status"]["code"] else "devices given")
        log, state = place.log.read_text(), place.state.read_text()
        said = place.call("status").stdout

    assert max(map(len, log.splitlines())) < LINE_BYTES
    assert len(state) < 100 * 500
    assert max(map(len, said.splitlines())) < LINE_BYTES
    assert len(answer["status"]["message"]) < LINE_BYTES
    if wish == LOT:
        given = next(line["devices"] for line in map(json.loads, log.splitlines()) if "devices" in line)
        assert (len(given), given[-1]) == (11, "... 240 more")
        assert len(answer["payload"]) > 200_000  # the engine is told of all


def test_an_engine_that_drops_devices_ends_it_in_a_sentence(place: Place) -> None:
    with Engine(place.socket) as engine, place.plugin() as child:
        with pytest.raises(ConnectionResetError):
            engine.accept().register("2.0.8")

        assert child.wait(10) == 1
    said = json.loads(place.log.read_text().splitlines()[-1])
    assert (said["event"], said["code"]) == ("failed", "nri-unusable")
    assert "containerd 2.0.8 takes them and starts the container without them" in said["problem"]
    assert said["problem"] in place.call("status").stdout


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="another protocol"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_an_engine_that_talks_nonsense_is_tried_again(place: Place, nonsense: bytes) -> None:
    with Engine(place.socket) as engine, place.plugin() as child:
        plugin = engine.accept()
        plugin.send(nonsense)
        if not nonsense:
            plugin.hang_up()
        again = engine.plugged()

        assert again.create(WISH)["payload"]
        assert child.poll() is None
    assert _events(place)[:2] == ["NRI plugin not registered", "NRI plugin registered"]


def test_a_log_that_nobody_reads_holds_no_container_up(place: Place) -> None:
    with Engine(place.socket) as engine, place.plugin(stderr=subprocess.PIPE):
        plugin = engine.plugged()
        slowest = 0.0
        for _ in range(1500):  # a pipe takes 64 KiB
            began = time.monotonic()
            plugin.create(WISH)
            slowest = max(slowest, time.monotonic() - began)

    assert slowest < 1


def test_only_a_stop_ends_it_also_while_it_waits_for_an_engine(place: Place) -> None:
    with place.plugin() as child:
        with Engine(place.socket) as engine:
            plugin = engine.plugged()
            for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGURG):
                child.send_signal(number)
                time.sleep(0.1)
            assert plugin.create(WISH)["payload"]
        until_told(place.log, "not registered")
        assert child.poll() is None
        child.send_signal(signal.SIGINT)

        assert child.wait(10) == 0
    assert [each.name for each in place.directory.iterdir()] == ["nri.sock"]


def test_it_stays_small_on_a_node_with_a_thousand_containers(place: Place) -> None:
    some = [(2, container(f"c{number}", f"p{number}", env=40)) for number in range(1000)]
    existing = message(*[(1, pod({}, number=f"p{number}")) for number in range(1000)], *some)

    with Engine(place.socket) as engine, place.plugin() as child:
        plugin = engine.plugged(existing)
        for _ in range(200):
            plugin.create(WISH)

        assert _pss_kb(child.pid) < PSS_KB


def test_a_socket_that_is_not_roots_is_not_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nri_plugin, "trusted_uids", lambda: frozenset({12345}))

    with Engine(place.socket) as engine, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place.socket))
        engine.accept()

        with pytest.raises(PermissionError, match="not by root"):
            nri_plugin.refuse_stranger(connection)


def test_a_lock_and_a_state_that_somebody_removes_are_there_again_and_no_second_plugin_starts(
    place: Place,
) -> None:
    lock = place.directory / "toolkit-installer.pid"
    with Engine(place.socket) as engine, place.plugin() as child:
        plugin = engine.plugged()
        before = json.loads(until_told(place.state, '"registered": true'))
        for _ in range(2):
            lock.unlink()
            place.state.unlink()
            until_told(place.state, '"registered": true')
            until_told(lock, f"{child.pid}\n")
        said, second = place.call("status"), place.call("nri", *ALLOW)
        given = plugin.create(WISH)
        child.terminate()

        assert child.wait(10) == 0
    assert (said.returncode, second.returncode) == (0, 3)
    assert f"another instance holds {lock}: pid {child.pid}" in sentence(second)
    assert given["payload"]
    assert before["since"] in said.stdout
    assert _events(place).count("lock made again") == 2
    assert [each.name for each in place.directory.iterdir()] == ["nri.sock"]


def test_of_two_plugins_the_one_whose_lock_another_has_taken_ends(place: Place) -> None:
    with Engine(place.socket) as engine, place.plugin() as child:
        engine.plugged()
        until_told(place.state, '"registered": true')
        lock = place.directory / "toolkit-installer.pid"
        with lock.with_suffix(".new").open("w") as file:
            os.fchmod(file.fileno(), 0o600)  # as a plugin makes its own
            fcntl.flock(file, fcntl.LOCK_EX)
            lock.with_suffix(".new").rename(lock)

            assert child.wait(10) == 3
            assert lock.exists()
    assert json.loads(place.state.read_text())["registered"]  # it is that of the other one
    assert "another instance holds" in place.log.read_text()


def test_what_is_no_pidfile_is_left_alone(place: Place) -> None:
    with Engine(place.socket) as engine, place.plugin() as child:
        plugin = engine.plugged()
        lock = place.directory / "toolkit-installer.pid"
        lock.with_suffix(".new").write_text("somebody's\n")
        lock.with_suffix(".new").rename(lock)
        time.sleep(nri_plugin.WATCH_S + 0.5)

        assert child.poll() is None
        assert plugin.create(WISH)["payload"]
        assert lock.read_text() == "somebody's\n"
