"""The waiter by itself: what wakes it, what does not, and how soon."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from installer.host import waiter
from installer.host.waiting import Watch, waits
from installer.host.waiting import script as waiting_script

SCRIPT = Path(waiter.__file__)
STOPS = [signal.SIGTERM, signal.SIGHUP]
# What the waiter becomes, and the slow check alone, as on a kernel that tells of nothing.
SAYING = f"""
import os
print(os.environ[{waiter.WOKEN_BY.decode()!r}])
print(*sorted(fd for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)))
print(*(line for line in open("/proc/self/status") if "SigBlk" in line))
"""
SAYS = (sys.executable, "-I", "-S", "-c", SAYING)
WITHOUT_DNOTIFY = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import waiter
waiter.CHECK_S, waiter.QUIET_S = 0.2, 0.1
waiter.main(sys.argv[1:])
"""


HURRIED = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import asking, waiter
waiter.CHECK_S, asking.AT_MOST_S = 0.3, 0.3
waiter.main(sys.argv[1:])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    directory.mkdir()
    (directory / "config").write_text("wanted")
    return directory


@contextmanager
def waiting(  # noqa: PLR0913 - one way to each wait
    places: list[str],
    *,
    due_s: float = 0,
    rest_s: float = 0,
    before: str = "",
    code: str = "",
    fds: tuple[int, ...] = (),
) -> Iterator["subprocess.Popen[str]"]:
    """Start the waiter; when it wakes it becomes what says what woke it."""
    watch = Watch(tuple(places), before or waiter.signature(places), due_s, rest_s)
    command = waits(STOPS, watch, SAYS)
    if code:  # in the place of the script
        script = str(waiting_script(waiter))
        command = [*command[:3], "-c", code, *command[command.index(script) + 1 :]]
    with _started(command, fds) as child:
        yield child


@contextmanager
def _started(command: list[str], fds: tuple[int, ...] = ()) -> Iterator["subprocess.Popen[str]"]:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=fds)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    with child:
        try:
            deadline = time.monotonic() + 10
            while not _waits(child.pid):
                assert time.monotonic() < deadline
                if child.poll() is not None:
                    break
                time.sleep(0.01)
            yield child
        finally:
            child.kill()


def _waits(pid: int) -> bool:
    return "sigtimedwait" in Path(f"/proc/{pid}/wchan").read_text()


def woken_by(child: "subprocess.Popen[str]", timeout_s: float = 20) -> int:
    said, _ = child.communicate(timeout=timeout_s)
    return int(said.splitlines()[0])


def _rewritten(directory: Path) -> None:
    (directory / "config").write_text("other")


def _renamed_over(directory: Path) -> None:
    (directory / "new").write_text("wanted")
    (directory / "new").rename(directory / "config")


def _removed(directory: Path) -> None:
    (directory / "config").unlink()


def _given_a_mode(directory: Path) -> None:
    (directory / "config").chmod(0o600)


def _written_in_place_with_its_old_time(directory: Path) -> None:
    status = (directory / "config").stat()
    (directory / "config").write_text("WANTED")
    os.utime(directory / "config", ns=(status.st_atime_ns, status.st_mtime_ns))


def _got_another(directory: Path) -> None:
    (directory / "99-site.toml").write_text("")


ACTS = (
    _rewritten,
    _renamed_over,
    _removed,
    _given_a_mode,
    _written_in_place_with_its_old_time,
    _got_another,
)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__.strip("_"))
def test_a_change_wakes_it_a_second_after_the_last_write(place: Path, act: Callable[[Path], None]) -> None:
    with waiting([f"{place}/"]) as child:
        began = time.monotonic()
        act(place)

        assert woken_by(child) == waiter.CHANGED
    assert waiter.QUIET_S <= time.monotonic() - began < 8


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__.strip("_"))
def test_the_slow_check_sees_it_where_the_kernel_does_not_tell(
    place: Path, act: Callable[[Path], None]
) -> None:
    with waiting([f"{place}/"], code=WITHOUT_DNOTIFY) as child:
        act(place)

        assert woken_by(child) == waiter.CHANGED


def test_what_was_changed_before_the_wait_began_is_seen(place: Path) -> None:
    before = waiter.signature([str(place / "config")])
    _rewritten(place)

    with waiting([str(place / "config")], before=before) as child:
        assert woken_by(child) == waiter.CHANGED


def _beside(directory: Path) -> None:
    (directory / "other").write_text("")


def _about_to_be_renamed(directory: Path) -> None:
    (directory / ".config.swp").write_text("")
    (directory / ".config.swp").unlink()


@pytest.mark.parametrize(
    ("places", "act"),
    [
        pytest.param(["config"], _beside, id="another file in the directory of a file"),
        pytest.param([""], _about_to_be_renamed, id="a file with a dot"),
        pytest.param(["config"], lambda directory: (directory / "config").read_text(), id="a reader"),
    ],
)
def test_what_does_not_matter_wakes_nobody(
    place: Path, places: list[str], act: Callable[[Path], None]
) -> None:
    with waiting([f"{place}/{name}" for name in places]) as child:
        for _ in range(3):
            act(place)
            time.sleep(1)

        assert child.poll() is None
        child.terminate()
        assert woken_by(child) == signal.SIGTERM


def test_a_change_that_is_taken_back_within_the_second_is_none(place: Path) -> None:
    with waiting([f"{place}/"]) as child:
        _got_another(place)
        time.sleep(0.2)
        (place / "99-site.toml").unlink()
        time.sleep(2.5)

        assert child.poll() is None
        child.terminate()
        assert woken_by(child) == signal.SIGTERM


def test_a_writer_who_never_stops_does_not_hold_it_up_for_ever(place: Path) -> None:
    with waiting([f"{place}/"]) as child:
        deadline = time.monotonic() + 30
        while child.poll() is None:
            _got_another(place)
            assert time.monotonic() < deadline
            time.sleep(0.05)

        assert woken_by(child) == waiter.CHANGED


@pytest.mark.parametrize("act", [_rewritten, _about_to_be_renamed], ids=["a change", "nothing"])
def test_a_stop_does_not_wait_for_the_quiet(place: Path, act: Callable[[Path], None]) -> None:
    with waiting([f"{place}/"], rest_s=60) as child:
        act(place)
        time.sleep(0.3)
        began = time.monotonic()
        child.terminate()

        assert woken_by(child) == signal.SIGTERM
    assert time.monotonic() - began < 0.9


def test_no_change_ends_a_rest_before_its_time(place: Path) -> None:
    with waiting([f"{place}/"], rest_s=3) as child:
        began = time.monotonic()
        _rewritten(place)

        assert woken_by(child) == waiter.CHANGED
    assert time.monotonic() - began > 2


def test_it_wakes_when_the_time_has_come_although_nothing_changed(place: Path) -> None:
    with waiting([f"{place}/"], due_s=0.5) as child:
        assert woken_by(child) == waiter.CHANGED


def test_its_own_signal_is_not_blocked_any_more_in_what_it_becomes(place: Path) -> None:
    with waiting([f"{place}/"], due_s=0.1) as child:
        said, _ = child.communicate(timeout=20)

    blocked = int(said.split()[-1], 16)
    assert blocked & (1 << (waiter.CHANGED - 1)) == 0
    assert blocked & (1 << (signal.SIGTERM - 1))


def test_nothing_of_the_watch_is_open_in_what_it_becomes(place: Path) -> None:
    with waiting([f"{place}/"], due_s=1) as child:
        held = [path.readlink() for path in Path(f"/proc/{child.pid}/fd").iterdir()]
        said, _ = child.communicate(timeout=20)

    assert place in held
    assert said.splitlines()[1] == "0 1 2"


def test_it_waits_where_the_waiter_cannot_take_its_place(place: Path) -> None:
    command = waits(STOPS, Watch((f"{place}/",), waiter.signature([f"{place}/"])), SAYS)
    second = command.index(sys.executable, 1)
    with _started([*command[:second], "/nowhere/python3", *command[second + 1 :]]) as child:
        _rewritten(place)

        assert woken_by(child) == waiter.CHANGED


def test_an_engine_that_is_gone_is_seen_by_its_process() -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as engine,
        waiting([f"/proc/{engine.pid}"], code=WITHOUT_DNOTIFY) as child,
    ):
        time.sleep(0.5)
        assert child.poll() is None, "the times of /proc are those of a look"
        engine.kill()
        engine.wait()

        assert woken_by(child) == waiter.CHANGED


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_is_handed_on_where_nothing_is_watched(number: signal.Signals) -> None:
    with _started(waits(STOPS, Watch(), SAYS)) as child:
        child.send_signal(number)

        assert woken_by(child) == number


def test_a_watch_is_of_what_a_link_leads_to_as_well(place: Path) -> None:
    link = place.parent / "link"
    link.symlink_to(place / "config")
    before = waiter.signature([str(link)])
    _rewritten(place)

    assert waiter.signature([str(link)]) != before


def _appears(place: Path) -> None:
    (place / "nvidia1").touch()


def _goes(place: Path) -> None:
    (place / "nvidia0").unlink()


def _is_made_anew(place: Path) -> None:
    (place / "other").touch()
    (place / "other").rename(place / "nvidia0")


@pytest.mark.parametrize("change", [_appears, _goes, _is_made_anew])
def test_a_name_that_begins_so_wakes_within_seconds_although_nothing_is_told(
    place: Path, change: Callable[[Path], None]
) -> None:
    (place / "nvidia0").touch()

    with waiting([f"{place}/nvidia*"]) as child:
        time.sleep(0.2)
        began = time.monotonic()
        change(place)

        assert woken_by(child) == waiter.CHANGED
    assert time.monotonic() - began < waiter.SOON_S + 2 * waiter.QUIET_S


def test_what_begins_otherwise_and_the_use_of_a_device_wake_nobody(place: Path) -> None:
    (place / "nvidia0").touch()
    before = waiter.signature([f"{place}/nvidia*"])

    (place / "nvidia0").write_text("written to")
    (place / "tty0").touch()

    assert waiter.signature([f"{place}/nvidia*"]) == before
    assert waiter.signature(["/nowhere/nvidia*"]) == waiter.signature(["/nowhere/else*"])


def test_nothing_is_held_open_of_a_driver_whose_file_system_may_be_unmounted(place: Path) -> None:
    (place / "driver/lib").mkdir(parents=True)

    with waiting([f"{place}/nvidia*", f"{place}/driver/lib/libcuda.so", f"{place}/driver"]) as child:
        held = [path.readlink() for path in Path(f"/proc/{child.pid}/fd").iterdir()]

        assert [path for path in held if path.is_relative_to(place)] == []
        child.send_signal(signal.SIGTERM)
        assert woken_by(child) == signal.SIGTERM


@contextmanager
def engine(tmp_path: Path, *, says: bytes) -> Iterator[tuple[Path, list[bytes]]]:
    """Listen as an engine does that ``says`` something to whoever asks; b"" is one that hangs."""
    path, heard = tmp_path / "engine.sock", []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client:
                        heard.append(client.recv(64))
                        client.sendall(says)

        if says:
            threading.Thread(target=serve, daemon=True).start()
        yield path, heard
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("letter", ["C", "D"])
def test_an_engine_that_hangs_wakes(place: Path, tmp_path: Path, letter: str) -> None:
    with (
        engine(tmp_path, says=b"") as (path, _),
        waiting([f"{place}/config", f"?{letter}{path}"], before=_alone(place), code=HURRIED) as child,
    ):
        assert woken_by(child) == waiter.CHANGED


@pytest.mark.parametrize(("letter", "request_"), [("C", b"PRI * HTTP/2.0"), ("D", b"GET /_ping")])
def test_an_engine_that_answers_wakes_nobody_and_a_stop_is_heard(
    place: Path, tmp_path: Path, letter: str, request_: bytes
) -> None:
    with (
        engine(tmp_path, says=b"x") as (path, heard),
        waiting([f"{place}/config", f"?{letter}{path}"], before=_alone(place), code=HURRIED) as child,
    ):
        deadline = time.monotonic() + 30
        while len(heard) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert woken_by(child) == signal.SIGTERM
    assert all(each.startswith(request_) for each in heard)


def _alone(place: Path) -> str:
    return waiter.signature([f"{place}/config"])


def test_what_is_to_be_there_wakes_where_it_is_removed_and_not_where_it_is_replaced(place: Path) -> None:
    told = place / "told"
    told.write_text("1")
    with waiting([f"!{told}"], before=waiter.signature([])) as child:
        (place / "new").write_text("2")
        (place / "new").rename(told)
        time.sleep(1.5)
        assert child.poll() is None
        told.unlink()
        assert woken_by(child) == waiter.CHANGED


FILLED = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import waiter
waiter.CHECK_S, waiter.QUIET_S = 0.2, 0.1
waiter.lacks_room = lambda said: True
waiter.main(sys.argv[1:])
"""


def test_a_file_system_that_has_no_room_any_more_wakes_and_one_that_is_as_before_does_not(
    place: Path,
) -> None:
    watched = [f"{waiter.KEPT}{place}"]

    with waiting(watched, code=FILLED) as full:
        assert woken_by(full) == waiter.CHANGED
    with waiting(watched, code=WITHOUT_DNOTIFY) as kept:
        (place / "config").write_text("other")
        with pytest.raises(subprocess.TimeoutExpired):
            kept.wait(1.0)


def test_an_engine_that_has_ended_is_not_asked_for_its_socket_may_start_it_again(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as systemd, subprocess.Popen(["sleep", "60"]) as dockerd:
        systemd.bind(str(path))
        systemd.listen()
        before = waiter.signature([f"/proc/{dockerd.pid}"])
        dockerd.kill()
        dockerd.wait()
        watched = [f"/proc/{dockerd.pid}", f"{waiter.ASK}D{path}"]
        with waiting(watched, before=before, code=HURRIED) as child:
            assert woken_by(child) == waiter.CHANGED
        systemd.settimeout(0.1)
        with pytest.raises(TimeoutError):
            systemd.accept()


DOCKERD = """
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
print(flush=True)
sys.stdin.readline()
listener.close()
print(flush=True)
sys.stdin.readline()
"""


def test_an_engine_that_stops_is_not_asked_for_its_socket_starts_it_again(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as systemd:
        systemd.bind(str(path))
        systemd.listen()
        systemd.settimeout(5)
        fd = systemd.fileno()
        command = [sys.executable, "-c", DOCKERD, str(fd)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[fd]
        ) as dockerd:
            assert dockerd.stdin is not None
            assert dockerd.stdout is not None
            dockerd.stdout.readline()
            process = f"/proc/{dockerd.pid}"
            watched = [process, f"{waiter.ASK}P{process}", f"{waiter.ASK}D{path}"]
            before = waiter.signature([process])
            with waiting(watched, before=before, code=HURRIED):
                asker, _ = systemd.accept()  # as long as it listens
                with asker:
                    assert asker.recv(1000)
                    asker.sendall(b"HTTP")
            dockerd.stdin.write("\n")
            dockerd.stdin.flush()
            dockerd.stdout.readline()
            with waiting(watched, due_s=2, before=before, code=HURRIED) as child:
                assert woken_by(child) == waiter.CHANGED
            systemd.settimeout(0.1)
            with pytest.raises(TimeoutError):
                systemd.accept()
            dockerd.kill()


def test_an_engine_that_hangs_is_seen_by_another_name_of_its_socket_as_well(tmp_path: Path) -> None:
    path = tmp_path / "d.sock"
    with socket.socket(socket.AF_UNIX) as dockerd:
        dockerd.bind(str(tmp_path / "docker.sock"))
        (tmp_path / "docker.sock").rename(path)
        dockerd.listen()
        process = f"/proc/{os.getpid()}"
        watched = [process, f"{waiter.ASK}P{process}", f"{waiter.ASK}D{path}"]
        with waiting(watched, before=waiter.signature([process]), code=HURRIED) as child:
            assert woken_by(child) == waiter.CHANGED


@contextmanager
def silent_clients(path: Path) -> Iterator[None]:
    """Keep two clients on a socket that say nothing, and that come again whenever they are sent away."""
    stop = threading.Event()

    def come() -> None:
        while not stop.is_set():
            with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
                client.settimeout(5)
                client.connect(str(path))
                client.recv(1)

    threads = [threading.Thread(target=come) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        path.unlink()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("change", [True, False], ids=["a change", "the time that has come"])
def test_clients_that_say_nothing_and_come_again_keep_nothing_from_being_seen(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, change: bool
) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        monkeypatch.setenv(waiter.LISTENS.decode(), f"{listener.fileno()}:{tmp_path}/figures")
        with (
            waiting(
                [f"{place}/"],
                due_s=0 if change else 3,
                code=WITHOUT_DNOTIFY if change else "",
                fds=(listener.fileno(),),
            ) as child,
            silent_clients(path),
        ):
            time.sleep(1.5)
            if change:
                (place / "config").write_text("other")

            assert woken_by(child, 15) == waiter.CHANGED
