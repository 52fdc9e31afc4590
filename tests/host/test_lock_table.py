import fcntl
import os
from pathlib import Path

import pytest

from installer.decide.errors import InstallerError
from installer.host.glance import is_held_pidfile
from installer.host.lock_table import lock_holder, root_holds
from installer.host.processes import started_of


def test_the_holder_of_a_lock_is_found(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with (tmp_path / "pidfile").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        pid, started = lock_holder(tmp_path / "pidfile") or (0, 0.0)
        nobody = lock_holder(tmp_path / "other")

    assert pid == os.getpid()
    assert started_of(pid, Path("/proc")) == started
    assert nobody is None


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
    assert is_held_pidfile(str(_pidfile(tmp_path, HELD, said)), str(tmp_path))


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
        pytest.param("", "7\n", True, 0, id="nobody holds it"),
    ],
)
def test_a_pidfile_that_run_does_not_hold_is_not_alive(
    tmp_path: Path, table: str, said: str, *, opens: bool, uid: int
) -> None:
    assert not is_held_pidfile(str(_pidfile(tmp_path, table, said, opens=opens, uid=uid)), str(tmp_path))


def test_a_pidfile_seems_held_where_nobody_can_know(tmp_path: Path) -> None:
    pidfile = _pidfile(tmp_path, "", "7\n")
    (tmp_path / "locks").unlink()

    assert is_held_pidfile(str(pidfile), str(tmp_path))


def test_a_file_that_is_not_there_is_not_held(tmp_path: Path) -> None:
    assert not is_held_pidfile(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("1: FLOCK  ADVISORY  WRITE 0 {} 0 EOF", id="another pid namespace"),
        pytest.param("1: OFDLCK ADVISORY  WRITE -1 {} 0 EOF", id="not an flock"),
        pytest.param("1: -> FLOCK  ADVISORY  WRITE 1 {} 0 EOF", id="only waiting for it"),
        pytest.param("1: FLOCK  ADVISORY  WRITE 1 00:00:1 0 EOF", id="another file"),
    ],
)
def test_what_is_no_visible_holder_is_not_named(tmp_path: Path, line: str) -> None:
    stat = tmp_path.stat()
    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    (tmp_path / "locks").write_text(line.format(device) + "\n")

    assert lock_holder(tmp_path, proc=tmp_path) is None


def test_a_lock_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InstallerError, match="absent"):
        lock_holder(tmp_path / "absent")


@pytest.mark.parametrize(
    ("uids", "held"),
    [
        pytest.param("0 0 0 0", True, id="root"),
        pytest.param("65534 65534 65534 65534", False, id="nobody"),
        pytest.param("65534 0 0 0", False, id="nobody in a setuid program"),
    ],
)
def test_a_lock_is_roots_only_if_all_of_its_holder_is(tmp_path: Path, uids: str, *, held: bool) -> None:
    locked = tmp_path / "lock"
    locked.touch()
    stat = locked.stat()
    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    (tmp_path / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 77 {device} 0 EOF\n")
    (tmp_path / "77/fd").mkdir(parents=True)
    (tmp_path / "77/fd/3").symlink_to(locked)
    (tmp_path / "77/status").write_text(f"Name:\tsu\nUid:\t{uids.replace(' ', chr(9))}\n")

    with locked.open() as file:
        assert root_holds(file.fileno(), [tmp_path]) is held
