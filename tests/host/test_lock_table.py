import fcntl
import os
from pathlib import Path

import pytest

from installer.decide.errors import InstallerError
from installer.host.lock_table import lock_holder, root_holds, seems_locked
from installer.host.processes import is_running


def test_the_holder_of_a_lock_is_found(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with (tmp_path / "pidfile").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        pid, started = lock_holder(tmp_path / "pidfile") or (0, 0.0)
        nobody = lock_holder(tmp_path / "other")

    assert pid == os.getpid()
    assert is_running(pid, started)
    assert nobody is None


@pytest.mark.parametrize(
    ("table", "seems"),
    [
        pytest.param("1: FLOCK  ADVISORY  WRITE 7 {device}:{inode} 0 EOF", True, id="held"),
        pytest.param("1: FLOCK  ADVISORY  WRITE 7 00:2a:{inode} 0 EOF", True, id="held, on btrfs"),
        pytest.param("1: FLOCK  ADVISORY  WRITE 7 {device}:1 0 EOF", False, id="another file is held"),
        pytest.param("1: -> FLOCK  ADVISORY  WRITE 7 {device}:{inode} 0 EOF", False, id="only waited for"),
        pytest.param("", False, id="not held"),
        pytest.param(None, True, id="nobody can know"),
    ],
)
def test_what_cannot_be_known_to_be_free_seems_locked(
    tmp_path: Path, table: str | None, *, seems: bool
) -> None:
    pidfile = tmp_path / "pidfile"
    pidfile.touch()
    stat = pidfile.stat()
    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}"
    if table is not None:
        (tmp_path / "locks").write_text(table.format(device=device, inode=stat.st_ino) + "\n")

    assert seems_locked(pidfile, proc=tmp_path) is seems


def test_a_file_that_is_not_there_is_not_locked(tmp_path: Path) -> None:
    assert not seems_locked(tmp_path / "absent")


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
