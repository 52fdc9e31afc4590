"""The NRI plugin as a process: small, alone, back at once, and truthful about what it has missed."""

import json
import socket
import time
from pathlib import Path

import psutil
import pytest

from installer.nri import plugin as nri_plugin
from installer.nri import session
from installer.nri.session import unpack
from tests.host.servers import message
from tests.support.nri import ALLOW, WISH, Engine, Place, container, pod
from tests.support.site import sentence
from tests.support.waiting import until_told

BACK_S = 0.1
IDLE_S = 5.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


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


def test_it_is_back_as_soon_as_an_engine_listens_again(place: Place) -> None:
    took = list[float]()
    with place.plugin():
        for _ in range(3):  # a busy machine may be late once
            with Engine(place.socket) as engine:
                engine.plugged()
                time.sleep(nri_plugin.STEADY_S + 0.1)
            time.sleep(nri_plugin.SOON_FOR_S + 0.2)  # nobody dials often any more
            with Engine(place.socket) as engine:
                began = time.monotonic()
                engine.plugged()
                took.append(time.monotonic() - began)
                time.sleep(nri_plugin.STEADY_S + 0.1)

    assert sorted(took)[1] < BACK_S, took


@pytest.mark.night
@pytest.mark.parametrize("leaves", ["nothing", "a socket of an engine that has stopped"])
def test_a_plugin_without_an_engine_wakes_up_four_times_a_second(place: Place, leaves: str) -> None:
    if leaves != "nothing":
        with socket.socket(socket.AF_UNIX) as stopped:
            stopped.bind(str(place.socket))
    with place.plugin() as child:
        time.sleep(nri_plugin.SOON_FOR_S + nri_plugin.GROWS * nri_plugin.LATEST_S)
        before = psutil.Process(child.pid).num_ctx_switches().voluntary
        time.sleep(IDLE_S)
        waits = psutil.Process(child.pid).num_ctx_switches().voluntary - before

    assert 0 < waits < 2 * IDLE_S / nri_plugin.LATEST_S


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


LINE_BYTES = 4096


def test_what_a_tenant_writes_makes_no_line_and_no_state_long(place: Place) -> None:
    lot = ",".join(f"management.nvidia.com/gpu={'x' * 900}{number}" for number in range(250))
    wishes = {"nvidia.cdi.k8s.io/pod": lot}  # of an annotation's 256 KiB
    existing = message((1, pod(wishes)), *[(2, container(f"c{number}")) for number in range(150)])

    with Engine(place.socket) as engine, place.plugin():
        plugin = engine.plugged(existing)
        answer = plugin.create(wishes)
        refused = plugin.create({"nvidia.cdi.k8s.io/pod": f"{'k' * 250_000}.b/c=0"})["status"]["message"]
        until_told(place.log, "container refused")
        log, state = place.log.read_text(), place.state.read_text()
        said = place.call("status").stdout

    assert max(map(len, log.splitlines())) < LINE_BYTES
    assert len(state) < 100 * 500
    assert max(map(len, (refused, *said.splitlines()))) < LINE_BYTES
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
    assert f"another instance holds /nri/{lock.name}: pid {child.pid}" in sentence(second)
    assert given["payload"]
    assert before["since"] in said.stdout
    assert _events(place).count("lock file restored") == 2
    assert [each.name for each in place.directory.iterdir()] == ["nri.sock"]
