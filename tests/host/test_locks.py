"""Locks and pidfiles: who gets one, and who holds it by the kernel's table, forged ones and real ones."""

import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from signal import SIGHUP
from typing import Any

import pytest

from installer.errors import InstallerError, LockedError
from installer.host import locks, processes
from installer.host.files import Host
from installer.host.kernel import is_roots
from installer.host.locks import is_pidfile_locked, lock_directory, lock_pidfile, remove_pidfile, write_pid
from tests.support.neighbours import NOBODY, locking, only_as_root, orphaned
from tests.support.tree import USUAL, Aspect, tree

HOME = PurePosixPath("/home")
PIDFILE = PurePosixPath("/toolkit.pid")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "home").mkdir()
    return Host.under(PurePosixPath(tmp_path))


def test_a_lock_on_a_renamed_directory_is_invalid(host: Host, tmp_path: Path) -> None:
    former = lock_directory(host, HOME)
    assert former is not None
    (tmp_path / "home").rename(tmp_path / "former")
    (tmp_path / "home").mkdir()

    lock = lock_directory(host, HOME, inherited=[former.fd])

    assert lock is not None
    assert os.path.samestat(os.fstat(lock.fd), (tmp_path / "home/lock").stat())
    lock.release()


def test_a_lock_on_a_directory_that_is_removed_in_that_moment_is_none_and_on_a_pidfile_an_error(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder removes it, as an uninstall ends, in the moment that somebody locks it."""
    held, real = lock_pidfile(host, HOME / "lock"), fcntl.flock

    def late(fd: int, operation: int) -> None:
        shutil.rmtree(tmp_path / "home", ignore_errors=True)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(LockedError, match=r"start \(another instance holds /home/lock\)"):
        lock_pidfile(host, HOME / "lock")
    held.release()
    (tmp_path / "home").mkdir()

    assert lock_directory(host, HOME) is None


def test_a_pidfile_that_another_holds_keeps_its_text(host: Host, tmp_path: Path) -> None:
    (tmp_path / "toolkit.pid").write_text("1234\n")

    with locking(tmp_path / "toolkit.pid", os.geteuid()):
        with pytest.raises(LockedError):
            lock_pidfile(host, PIDFILE)
        remove_pidfile(host, PIDFILE)

    assert (tmp_path / "toolkit.pid").read_text() == "1234\n"


@only_as_root
def test_a_lock_on_a_file_that_root_alone_opens_counts_whoever_holds_it(host: Host, tmp_path: Path) -> None:
    (tmp_path / "home/lock").touch(0o600)

    with locking(tmp_path / "home/lock", NOBODY), pytest.raises(LockedError, match="another instance holds"):
        lock_directory(host, HOME)


def test_a_lock_whose_taker_has_ended_is_told_with_the_process_that_inherited_it(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "home/lock").touch(0o600)

    with (
        orphaned(tmp_path / "home/lock", os.geteuid()) as taker,
        pytest.raises(LockedError, match=r"another instance holds /home: pid (\d+), started") as refused,
    ):
        lock_directory(host, HOME)

    heir = int(refused.value.problem.partition(": pid ")[2].partition(",")[0])
    assert os.getpgid(heir) == taker.pid


@only_as_root
@pytest.mark.parametrize("hold", [locking, orphaned], ids=["held", "nobody seems to hold it"])
@pytest.mark.parametrize(
    ("held", "wide"), [("home", False), ("home", True), ("home/lock", True), ("toolkit.pid", True)]
)
def test_a_lock_of_a_neighbours_keeps_nobody_out(
    host: Host, tmp_path: Path, hold: Callable[[Path, int], Any], held: str, *, wide: bool
) -> None:
    taken = "home/lock" if held.startswith("home") else held
    if wide:
        (tmp_path / taken).write_text("7\n" if taken == "toolkit.pid" else "")
        (tmp_path / taken).chmod(0o644)
    take, path = (lock_directory, HOME) if taken == "home/lock" else (lock_pidfile, PIDFILE)

    with hold(tmp_path / held, NOBODY):
        lock = take(host, path)

    assert lock is not None, "who has opened it earlier has another inode"
    assert os.path.samestat(os.fstat(lock.fd), (tmp_path / taken).stat())
    assert stat.S_IMODE((tmp_path / taken).stat().st_mode) == 0o600
    with pytest.raises(LockedError):
        take(host, path)
    lock.release()


def _hard_link(path: Path) -> None:
    path.with_name("kept").write_text("1\n")
    path.hardlink_to(path.with_name("kept"))


SEEN = USUAL | Aspect.TIMES
FOREIGN = [
    pytest.param(lambda path: path.write_text("root = true\n"), id="a config"),
    pytest.param(lambda path: path.write_text("1" * 1000), id="too long"),
    pytest.param(lambda path: path.write_text(f"{os.getpid()}\n"), id="pidfile of a program that runs"),
    pytest.param(os.mkfifo, id="a FIFO"),
    pytest.param(_hard_link, id="a hard link"),
    pytest.param(Path.mkdir, id="a directory"),
]


@pytest.mark.parametrize("make", FOREIGN)
def test_what_is_not_a_pidfile_of_ours_is_neither_taken_nor_removed(
    host: Host, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "theirs.pid")
    before = tree(tmp_path, SEEN)

    with pytest.raises(InstallerError, match=r"cannot use /theirs.pid as the pidfile"):
        lock_pidfile(host, PurePosixPath("/theirs.pid"))
    remove_pidfile(host, PurePosixPath("/theirs.pid"))

    assert tree(tmp_path, SEEN) == before


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_pidfile_is_for_root_alone_whatever_the_umask_and_a_longer_text_of_a_stale_one_is_replaced(
    host: Host, tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "toolkit.pid"
    path.write_text("999999999 99999\n" if umask else "")
    before = os.umask(umask)
    lock = lock_pidfile(host, PIDFILE)
    os.umask(before)
    write_pid(lock, PIDFILE)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == f"{os.getpid()}\n"
    lock.release()


HELD = "1: FLOCK  ADVISORY  WRITE 7 00:2a:{inode} 0 EOF"


def _pidfile(proc: Path, lock: str = HELD, said: str = "7\n", *, opens: bool = True, uid: int = 0) -> Path:
    """Make a pidfile, and a /proc whose process 7 is 1 in its own namespace and has it open."""
    pidfile = proc / "pidfile"
    pidfile.write_text(said)
    inode = pidfile.stat().st_ino
    (proc / "locks").write_text(lock.format(inode=inode) + "\n")
    (proc / "7/fdinfo").mkdir(parents=True)
    (proc / "7/fdinfo/3").write_text(f"pos:\t0\nlock:\t{lock.format(inode=inode)}\n")
    (proc / "7/fd").mkdir()
    (proc / "7/fd/3").symlink_to(pidfile if opens else proc / "another")
    (proc / "another").touch()
    (proc / "7/status").write_text(f"Name:\tpython\nNSpid:\t7\t1\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    return pidfile


@pytest.mark.parametrize(
    "said", ["7\n", "1\n", "", "7"], ids=["its pid", "in its container", "not yet", "no line"]
)
def test_a_pidfile_is_held_by_the_process_that_has_it_open_and_whose_pid_it_holds(
    tmp_path: Path, said: str
) -> None:
    pidfile = _pidfile(tmp_path, said=said)
    if said.strip():  # any user can make the table so long that it is not read to its end
        (tmp_path / "locks").write_text("")

    assert is_pidfile_locked(pidfile, tmp_path)


@pytest.mark.parametrize(
    "held",
    [
        pytest.param({"opens": False}, id="another file with that inode number is held"),
        pytest.param({"uid": NOBODY}, id="a neighbour holds it"),
        pytest.param({"said": "4711\n"}, id="another program holds it"),
        pytest.param({"lock": HELD.replace("{inode}", "1")}, id="another inode"),
        pytest.param({"lock": HELD.replace("FLOCK", "-> FLOCK")}, id="only waited for"),
        pytest.param({"lock": HELD.replace("FLOCK ", "OFDLCK")}, id="not an flock"),
        pytest.param({"lock": ""}, id="nobody holds it"),
    ],
)
def test_a_pidfile_that_run_does_not_hold_is_not_alive(tmp_path: Path, held: dict[str, Any]) -> None:
    assert not is_pidfile_locked(_pidfile(tmp_path, **held), tmp_path)


def test_a_pidfile_seems_held_if_not_all_processes_can_be_looked_at_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfile = _pidfile(tmp_path, said="4711\n")
    monkeypatch.setattr(processes, "LOOK_S", -1.0)

    assert is_pidfile_locked(pidfile, tmp_path)


def test_a_pidfile_seems_held_where_nobody_can_know_and_not_where_it_is_not_there(tmp_path: Path) -> None:
    pidfile = _pidfile(tmp_path, "")
    (tmp_path / "locks").unlink()

    assert is_pidfile_locked(pidfile, tmp_path)
    assert not is_pidfile_locked(tmp_path / "absent")


@only_as_root
@pytest.mark.parametrize("mode", [0o711, 0o700])
def test_who_may_not_look_is_told_to_be_root(host: Host, tmp_path: Path, mode: int) -> None:
    pidfile, lock = tmp_path / PIDFILE.name, lock_pidfile(host, PIDFILE)
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(mode)
    os.seteuid(NOBODY)
    try:
        assert is_pidfile_locked(pidfile)
        with pytest.raises(InstallerError, match=r"cannot find the process that holds .*; run as root"):
            locks.send(pidfile, SIGHUP)
    finally:
        os.seteuid(0)
        lock.release()


def test_a_process_is_roots_only_if_all_of_it_is_which_a_setuid_program_is_not(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    for uids, held in (("0\t0\t0\t0", True), ("65534\t0\t0\t0", False)):
        (tmp_path / "77/status").write_text(f"Name:\tsu\nUid:\t{uids}\n")

        assert is_roots(77, tmp_path) is held
