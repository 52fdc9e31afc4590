import fcntl
import os
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.errors import LockedError
from installer.host.files import Host
from installer.host.locks import lock_directory, lock_pidfile, write_pid

HOME = PurePosixPath("/home")
PIDFILE = PurePosixPath("/toolkit.pid")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "home").mkdir()
    return Host.under(PurePosixPath(tmp_path))


def test_a_lock_on_a_directory_that_has_lost_its_name_is_none(host: Host, tmp_path: Path) -> None:
    stale = os.open(tmp_path / "home", os.O_RDONLY)
    (tmp_path / "home").rename(tmp_path / "former")
    (tmp_path / "home").mkdir()

    lock = lock_directory(host, HOME, inherited=stale)

    assert lock is not None
    assert os.path.samestat(os.fstat(lock.fd), (tmp_path / "home").stat())
    lock.release()


def test_a_lock_is_given_to_one_only_and_outlives_an_exec(host: Host) -> None:
    first = lock_directory(host, HOME)
    assert first is not None

    with pytest.raises(LockedError, match=f"pid {os.getpid()}, started "):
        lock_directory(host, HOME)

    assert os.get_inheritable(first.fd)
    first.release()
    second = lock_directory(host, HOME)
    assert second is not None
    second.release()


def test_a_pidfile_that_another_holds_keeps_its_text(host: Host, tmp_path: Path) -> None:
    with (tmp_path / "toolkit.pid").open("w+") as theirs:
        theirs.write("1234\n")
        theirs.flush()
        fcntl.flock(theirs, fcntl.LOCK_EX)

        with pytest.raises(LockedError):
            lock_pidfile(host, PIDFILE)

        assert (tmp_path / "toolkit.pid").read_text() == "1234\n"


def test_a_longer_text_of_a_stale_pidfile_is_replaced_whole(host: Host, tmp_path: Path) -> None:
    (tmp_path / "toolkit.pid").write_text("999999999 and more\n")

    lock = lock_pidfile(host, PIDFILE)
    write_pid(lock, PIDFILE)

    assert (tmp_path / "toolkit.pid").read_text() == f"{os.getpid()}\n"
    lock.release()
