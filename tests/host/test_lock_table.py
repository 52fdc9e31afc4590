"""Who holds a lock, by the kernel's table and what it tells of processes: forged ones, and real ones."""

import os
import signal
from pathlib import Path

import pytest

from installer.host.kernel import is_roots
from installer.host.locks import describe_halt, is_held_pidfile
from tests.support.neighbours import locking
from tests.support.waiting import stop


def _pidfile(proc: Path, table: str, said: str, *, opens: bool = True, uid: int = 0) -> Path:
    """Make a pidfile, and a /proc whose process 7 is 1 in its own namespace and has it open."""
    pidfile = proc / "pidfile"
    pidfile.write_text(said)
    inode = pidfile.stat().st_ino
    (proc / "locks").write_text(table.format(inode=inode) + "\n")
    (proc / "7/fd").mkdir(parents=True)
    (proc / "7/fd/3").symlink_to(pidfile if opens else proc / "another")
    (proc / "another").touch()
    (proc / "7/status").write_text(f"Name:\tpython\nNSpid:\t7\t1\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    return pidfile


HELD = "1: FLOCK  ADVISORY  WRITE 7 00:2a:{inode} 0 EOF"


@pytest.mark.parametrize(
    "said", ["7\n", "1\n", "", "7"], ids=["its pid", "in its container", "not yet", "no line"]
)
def test_a_pidfile_is_held_by_the_process_that_has_it_open_and_whose_pid_it_holds(
    tmp_path: Path, said: str
) -> None:
    assert is_held_pidfile(_pidfile(tmp_path, HELD, said), tmp_path)


@pytest.mark.parametrize(
    ("table", "said", "opens", "uid"),
    [
        pytest.param(HELD, "7\n", False, 0, id="another file with that inode number is held"),
        pytest.param(HELD, "7\n", True, 65534, id="a neighbour holds it"),
        pytest.param(HELD, "4711\n", True, 0, id="another program holds it"),
        pytest.param("1: FLOCK  ADVISORY  WRITE 7 00:2a:1 0 EOF", "7\n", True, 0, id="another inode"),
        pytest.param(
            "1: -> FLOCK  ADVISORY  WRITE 7 00:2a:{inode} 0 EOF", "7\n", True, 0, id="only waited for"
        ),
        pytest.param("1: OFDLCK ADVISORY  WRITE 7 00:2a:{inode} 0 EOF", "7\n", True, 0, id="not an flock"),
        pytest.param("", "7\n", True, 0, id="nobody holds it"),
    ],
)
def test_a_pidfile_that_run_does_not_hold_is_not_alive(
    tmp_path: Path, table: str, said: str, *, opens: bool, uid: int
) -> None:
    assert not is_held_pidfile(_pidfile(tmp_path, table, said, opens=opens, uid=uid), tmp_path)


def test_a_pidfile_seems_held_where_nobody_can_know_and_not_where_it_is_not_there(tmp_path: Path) -> None:
    pidfile = _pidfile(tmp_path, "", "7\n")
    (tmp_path / "locks").unlink()

    assert is_held_pidfile(pidfile, tmp_path)
    assert not is_held_pidfile(tmp_path / "absent")


@pytest.mark.parametrize(
    ("uids", "held"),
    [
        pytest.param("0 0 0 0", True, id="root"),
        pytest.param("65534 65534 65534 65534", False, id="nobody"),
        pytest.param("65534 0 0 0", False, id="nobody in a setuid program"),
    ],
)
def test_a_process_is_roots_only_if_all_of_it_is(tmp_path: Path, uids: str, *, held: bool) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/status").write_text(f"Name:\tsu\nUid:\t{uids.replace(' ', chr(9))}\n")

    assert is_roots(77, tmp_path) is held


def test_a_holder_that_was_stopped_does_not_go_on_until_it_is_told_to(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with locking(lock, os.geteuid()) as child:
        stop(child.pid)
        stopped = describe_halt(lock)
        os.kill(child.pid, signal.SIGCONT)
        goes_on = describe_halt(lock)

    assert (stopped, goes_on) == ("stopped", "")
    assert (describe_halt(lock), describe_halt(tmp_path / "nothing")) == ("", "")
