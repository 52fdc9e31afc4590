"""The program that an engine starts as its plugin: it leads to the one that runs, or ends at once."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.nri.relay import script
from installer.decide.nri.wishes import Nri
from installer.host.nri_relay import Relay
from tests.support.nri import ALLOW, DEADLINE_S, WISH, Engine, Place, Plugged, until
from tests.support.waiting import stop

PREINSTALLED = (*ALLOW, "--nri-preinstalled")
ENGINE_WAITS_S = 5.0  # and starts without it
PIPES = "in", "out"


class Preinstalled(Place):
    """A directory for the socket, and the program that leads to a plugin there."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.nri = Nri(PurePosixPath(self.socket))
        self.pipes = Path(self.nri.pipes)
        self.program = directory / "10-toolkit-installer"
        self.engine()

    def engine(self, *words: str) -> None:
        """Write the program for an engine of a command line."""
        self.program.write_text(script(self.nri, words))
        self.program.chmod(0o755)

    @contextmanager
    def started(self) -> Iterator[tuple[Plugged, "subprocess.Popen[bytes]"]]:
        """Start the program as an engine does: its connection is fd 3, and there is no PATH."""
        ours, its = socket.socketpair()
        words = f"exec {self.program} 3<&0 0</dev/null"
        child = subprocess.Popen(["/bin/sh", "-c", words], stdin=its.fileno(), env={})
        its.close()
        plugged = Plugged(ours)
        try:
            yield plugged, child
        finally:
            plugged.hang_up()
            child.wait(DEADLINE_S)

    @contextmanager
    def started_when_ready(self) -> Iterator[tuple[Plugged, "subprocess.Popen[bytes]"]]:
        _ready(self)
        with self.started() as both:
            yield both


@pytest.fixture
def place(tmp_path: Path) -> Preinstalled:
    return Preinstalled(tmp_path)


def _ready(place: Preinstalled) -> None:
    until(place.state, "waits for the engine")
    assert _soon((place.pipes / "in").exists)


def _soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


def _hears_the_end(plugged: Plugged) -> bool:
    with suppress(ConnectionResetError):
        while True:
            plugged.receive()
    return True


def test_an_engine_that_starts_the_program_has_the_plugin_before_it_listens(place: Preinstalled) -> None:
    with place.plugin(*PREINSTALLED) as child:
        _ready(place)
        for _ in range(3):
            with place.started() as (plugged, program):
                assert plugged.register() == {"name": "toolkit-installer", "index": "10"}
                with Engine(place.socket) as engine:
                    given = plugged.create(WISH)
                    until(place.state, '"registered": true')

                    assert given["payload"]
                    # Registered twice, it would give each device twice, and the engine refuses that.
                    assert not engine.is_dialled()
                plugged.hang_up()
                assert program.wait(DEADLINE_S) == 0
        child.terminate()
        assert child.wait(DEADLINE_S) == 0
    assert not place.pipes.exists()


def test_an_engine_that_found_it_taken_costs_the_next_start_nothing(place: Preinstalled) -> None:
    with place.plugin(*PREINSTALLED):
        with place.started_when_ready() as (plugged, _):
            plugged.register()
            until(place.state, '"registered": true')
            with place.started() as (_, second):
                assert second.wait(DEADLINE_S) == -signal.SIGKILL

        with place.started() as (plugged, _):
            assert plugged.register() == {"name": "toolkit-installer", "index": "10"}
            assert plugged.create(WISH)["payload"]


def test_long_answers_come_through_in_frames_that_an_engine_reads(place: Preinstalled) -> None:
    names = ",".join(f"management.nvidia.com/gpu={number}" for number in range(3000))

    with place.plugin(*PREINSTALLED), place.started_when_ready() as (plugged, _):
        plugged.register()
        answer = plugged.create({"nvidia.cdi.k8s.io/pod": names})

    assert len(answer["payload"]) > 64 << 10  # more than a pipe holds
    assert plugged.longest == 4096


def test_where_no_plugin_runs_the_program_ends_at_once(place: Preinstalled) -> None:
    began = time.monotonic()
    with place.started() as (plugged, program):
        assert program.wait(DEADLINE_S) == 0
        assert _hears_the_end(plugged)
    assert time.monotonic() - began < 1.0


def test_where_a_killed_plugin_has_left_its_pipes_the_program_ends_before_the_engine_gives_up(
    place: Preinstalled,
) -> None:
    with place.plugin(*PREINSTALLED) as child:
        _ready(place)
        child.kill()
        child.wait()

    assert (place.pipes / "in").exists()
    began = time.monotonic()
    with place.started() as (plugged, program):
        assert program.wait(DEADLINE_S) == -signal.SIGKILL
        assert _hears_the_end(plugged)
    assert time.monotonic() - began < ENGINE_WAITS_S


def test_a_plugin_that_hangs_costs_the_engine_a_second_and_serves_by_the_socket_when_it_goes_on(
    place: Preinstalled,
) -> None:
    with place.plugin(*PREINSTALLED) as child:
        _ready(place)
        stop(child.pid)
        began = time.monotonic()
        with place.started() as (plugged, program):
            assert program.wait(DEADLINE_S) == -signal.SIGKILL
            assert _hears_the_end(plugged)
        assert time.monotonic() - began < ENGINE_WAITS_S
        with Engine(place.socket) as engine:
            child.send_signal(signal.SIGCONT)
            assert engine.plugged().create(WISH)["payload"]


def test_a_plugin_that_is_killed_ends_the_program_and_the_engine_sees_it(place: Preinstalled) -> None:
    with place.plugin(*PREINSTALLED) as child, place.started_when_ready() as (plugged, program):
        plugged.register()
        child.kill()

        assert _hears_the_end(plugged)
        assert program.wait(DEADLINE_S) is not None


def test_an_engine_that_ends_while_its_plugin_is_asked_for_leaves_the_next_one_a_clean_start(
    place: Preinstalled,
) -> None:
    with place.plugin(*PREINSTALLED):
        _ready(place)
        with place.started() as (plugged, program):
            plugged.receive()  # RegisterPlugin, which nobody answers
            plugged.hang_up()
            program.wait(DEADLINE_S)
        with place.started() as (plugged, _):
            assert plugged.register()["name"] == "toolkit-installer"


def test_a_program_that_dies_when_it_has_said_that_it_is_there_keeps_nobody_waiting(tmp_path: Path) -> None:
    relay = Relay(str(tmp_path / "pipes"))
    said = os.open(tmp_path / "pipes/in", os.O_WRONLY)
    os.write(said, b"\n")
    os.close(said)

    assert relay.accepted() is None
    assert relay.accepted() is None  # what it had said is forgotten
    relay.close()


def test_without_the_flag_there_are_no_pipes(place: Preinstalled) -> None:
    with place.plugin(*ALLOW), Engine(place.socket) as engine:
        engine.plugged()
        assert not place.pipes.exists()


def _our_words() -> list[str]:
    return Path("/proc/self/cmdline").read_text().removesuffix("\0").split("\0")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(("/usr/bin/containerd", "--config", "/etc/other.toml"), id="other words"),
        pytest.param((*_our_words(), "--more"), id="a word more"),
        pytest.param(("$(exit 1)", "'", '"', "a b"), id="words that a shell could take for more"),
    ],
)
def test_an_engine_beside_the_one_it_is_for_is_let_go_at_once_and_takes_nothing(
    place: Preinstalled, other: tuple[str, ...]
) -> None:
    place.engine(*other)
    with place.plugin(*PREINSTALLED):
        with place.started_when_ready() as (plugged, program):
            began = time.monotonic()
            assert program.wait(DEADLINE_S) == 0
            assert _hears_the_end(plugged)
            assert time.monotonic() - began < 0.5

        with Engine(place.socket) as engine:
            assert engine.plugged().create(WISH)["payload"]


def test_the_engine_that_it_is_for_is_known_by_its_command_line(place: Preinstalled) -> None:
    place.engine(*_our_words())

    with place.plugin(*PREINSTALLED), place.started_when_ready() as (plugged, _):
        assert plugged.register()["name"] == "toolkit-installer"
        assert plugged.create(WISH)["payload"]


# The plugin may make each again before the next one goes.
def _removed_directory(place: Preinstalled) -> None:
    shutil.rmtree(place.pipes, ignore_errors=True)


def _removed_pipes(place: Preinstalled) -> None:
    for name in PIPES:
        (place.pipes / name).unlink(missing_ok=True)


def _replaced_by_files(place: Preinstalled) -> None:
    for name in PIPES:
        file = place.directory.parent / f"in the place of {name}"
        file.write_text("x")
        file.rename(place.pipes / name)


REMOVALS = [_removed_directory, _removed_pipes, _replaced_by_files]


def _has_pipes(place: Preinstalled) -> bool:
    return all((place.pipes / name).is_fifo() for name in PIPES)


@pytest.mark.parametrize("remove", REMOVALS)
def test_pipes_that_somebody_removes_while_it_waits_are_made_again(
    place: Preinstalled, remove: Callable[[Preinstalled], None]
) -> None:
    with place.plugin(*PREINSTALLED) as child:
        _ready(place)
        remove(place)
        assert _soon(lambda: _has_pipes(place))

        with place.started() as (plugged, _):
            assert plugged.register()["name"] == "toolkit-installer"
            assert plugged.create(WISH)["payload"]
        child.terminate()
        assert child.wait(DEADLINE_S) == 0
    assert "pipes made again" in place.log.read_text()
    assert not place.pipes.exists()


@pytest.mark.parametrize("remove", REMOVALS)
def test_pipes_that_somebody_removes_while_it_serves_are_there_for_the_next_start(
    place: Preinstalled, remove: Callable[[Preinstalled], None]
) -> None:
    with place.plugin(*PREINSTALLED):
        with place.started_when_ready() as (plugged, _):
            plugged.register()
            until(place.state, '"registered": true')
            remove(place)
            assert _soon(lambda: _has_pipes(place))
            assert plugged.create(WISH)["payload"], "it goes on"

        with place.started() as (plugged, _):
            assert plugged.register()["name"] == "toolkit-installer"
            assert plugged.create(WISH)["payload"]


def test_after_a_boot_without_pipes_the_program_ends_at_once_and_the_plugin_makes_them(
    place: Preinstalled,
) -> None:
    began = time.monotonic()
    with place.started() as (_, program):
        assert program.wait(DEADLINE_S) == 0
    assert time.monotonic() - began < 0.5

    with place.plugin(*PREINSTALLED), place.started_when_ready() as (plugged, _):
        assert plugged.register()["name"] == "toolkit-installer"
