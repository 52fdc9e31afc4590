"""What a waiting ``run`` compares, and when a change is a reason for a check."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from installer import watch
from installer.host.sockets import has_closed
from installer.watch import CHECK_S, QUIET_S, UNQUIET_S, NextCheck, Watch, fingerprint

Act = Callable[[Path], object]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    directory.mkdir()
    (directory / "config").write_text("wanted")
    (directory / "nvidia0").touch()
    return directory


def _renamed_over(directory: Path) -> None:
    (directory / "new").write_text("wanted")
    (directory / "new").rename(directory / "config")


def _written_in_place_with_its_old_time(directory: Path) -> None:
    status = (directory / "config").stat()
    (directory / "config").write_text("WANTED")
    os.utime(directory / "config", ns=(status.st_atime_ns, status.st_mtime_ns))


def _made_anew(directory: Path) -> None:
    (directory / "other").touch()
    (directory / "other").rename(directory / "nvidia0")


@pytest.mark.parametrize(
    ("kind", "name", "act", "seen"),
    [
        pytest.param(watch.DIRECTORY, "", _renamed_over, True, id="replaced by the same"),
        pytest.param(watch.DIRECTORY, "", lambda place: (place / "config").unlink(), True, id="removed"),
        pytest.param(
            watch.DIRECTORY, "", _written_in_place_with_its_old_time, True, id="its old time and size"
        ),
        pytest.param(
            watch.DIRECTORY, "", lambda place: (place / "99-site.toml").touch(), True, id="one more"
        ),
        pytest.param(
            watch.DIRECTORY, "", lambda place: (place / ".config.swp").touch(), False, id="one with a dot"
        ),
        pytest.param(
            watch.PATH, "/config", lambda place: (place / "other").touch(), False, id="one beside a file"
        ),
        pytest.param(
            watch.NAMES,
            "/nvidia",
            lambda place: (place / "nvidia1").touch(),
            True,
            id="a name that begins so",
        ),
        pytest.param(watch.NAMES, "/nvidia", _made_anew, True, id="such a name made anew"),
        pytest.param(
            watch.NAMES, "/nvidia", lambda place: (place / "tty0").touch(), False, id="another name"
        ),
        pytest.param(
            watch.NAMES, "/nvidia", lambda place: (place / "nvidia0").write_text("x"), False, id="its use"
        ),
    ],
)
def test_what_matters_gives_another_fingerprint(
    place: Path, kind: str, name: str, act: Act, *, seen: bool
) -> None:
    places = [(kind, f"{place}{name}")]
    before = fingerprint(places)

    act(place)

    assert (fingerprint(places) != before) is seen


def test_what_a_link_leads_to_is_compared_as_well(place: Path) -> None:
    (place / "link").symlink_to("config")
    before = fingerprint([(watch.PATH, f"{place}/link")])

    (place / "config").write_text("other")

    assert fingerprint([(watch.PATH, f"{place}/link")]) != before


def test_what_is_to_be_there_may_be_replaced_and_not_removed(place: Path) -> None:
    before = fingerprint([(watch.EXISTENCE, f"{place}/config")])
    _renamed_over(place)
    replaced = fingerprint([(watch.EXISTENCE, f"{place}/config")])
    (place / "config").unlink()

    assert replaced == before == fingerprint([])
    assert fingerprint([(watch.EXISTENCE, f"{place}/config")]) != before


def test_a_file_system_without_room_is_another_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint([(watch.FILE_SYSTEM, f"{place}")])
    (place / "config").write_text("other")
    written = fingerprint([(watch.FILE_SYSTEM, f"{place}")])
    monkeypatch.setattr(watch, "lacks_room", lambda _: True)

    assert written == before
    assert fingerprint([(watch.FILE_SYSTEM, f"{place}")]) != before


def test_the_supervisor_reads_what_a_check_sends() -> None:
    places = [(watch.PATH, "/etc/a b"), (watch.NAMES, "/dev/nvidia"), (watch.DIRECTORY, "/etc/\udcff")]
    sent = Watch(places, baseline="-12", due_s=1.5, rest_s=60.0)

    received = Watch.decode(sent.encode())

    assert vars(received) == vars(sent)
    assert vars(Watch.decode(Watch().encode())) == vars(Watch())


class Clocked:
    """A check that has answered now, and is asked at given seconds from then on when the next one begins."""

    def __init__(self, place: Path, due_s: float = 0.0, rest_s: float = 0.0) -> None:
        places = [(watch.DIRECTORY, str(place))]
        answer = Watch(places, baseline=fingerprint(places), due_s=due_s, rest_s=rest_s)
        self._at = time.monotonic()
        self._next_check = NextCheck(Watch.decode(answer.encode()), self._at)

    def checks(self, second: float) -> bool:
        return self._next_check.has_come(self._at + second)


def test_a_change_is_checked_when_nobody_has_written_for_a_second(place: Path) -> None:
    run = Clocked(place)
    idle = run.checks(2)
    (place / "config").write_text("1")
    at_once = run.checks(4)
    (place / "config").write_text("22")

    seen = [idle, at_once, *map(run.checks, (4.5, 5.4, 4.5 + QUIET_S))]
    assert seen == [False, False, False, False, True]


def test_a_writer_who_never_stops_does_not_hold_a_check_up_for_ever(place: Path) -> None:
    run, found = Clocked(place), []
    for tenth in range(20, 140, 5):
        (place / "config").write_text("x" * tenth)
        found.append(run.checks(tenth / 10))

    assert found.index(True) == UNQUIET_S * 2


@pytest.mark.parametrize(("due_s", "checked_s"), [(0, CHECK_S), (7, 7), (500, CHECK_S)])
def test_a_check_is_due_when_one_asked_for_another_and_every_two_minutes(
    place: Path, due_s: float, checked_s: float
) -> None:
    run = Clocked(place, due_s)

    assert (run.checks(checked_s - 0.1), run.checks(checked_s + 0.1)) == (False, True)


def test_no_change_ends_a_rest_before_its_time(place: Path) -> None:
    run = Clocked(place, rest_s=30)
    (place / "config").write_text("other")

    assert [run.checks(second) for second in (2, 4, 29, 31)] == [False, False, False, True]


DOCKERD = """
import os, sys
print(flush=True)
sys.stdin.readline()
os.close(int(sys.argv[1]))
print(flush=True)
sys.stdin.readline()
"""


def test_a_docker_that_has_closed_its_socket_and_lives_on_is_being_stopped(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as systemd:
        systemd.bind(str(path))
        systemd.listen()
        fd = systemd.fileno()
        command = [sys.executable, "-c", DOCKERD, str(fd)]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1, pass_fds=[fd]) as dockerd:
            assert dockerd.stdin is not None
            assert dockerd.stdout is not None
            dockerd.stdout.readline()
            serves = has_closed(f"/proc/{dockerd.pid}", str(path))
            dockerd.stdin.write("\n")
            dockerd.stdout.readline()
            stops = has_closed(f"/proc/{dockerd.pid}", str(path))
            dockerd.kill()
        ended = has_closed(f"/proc/{dockerd.pid}", str(path))

    assert (serves, stops, ended) == (False, True, False)
