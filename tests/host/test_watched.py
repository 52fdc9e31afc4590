import os
import time
from pathlib import Path, PurePosixPath

from installer.host.watched import SECOND_NS, Watched

CONFIG = PurePosixPath("/etc/daemon.json")


def _watched(root: Path) -> Watched:
    (root / "etc").mkdir()
    (root / "etc/daemon.json").write_text("{}")
    return Watched.under(PurePosixPath(root))


def test_what_was_just_written_is_not_settled_and_soon_is(tmp_path: Path) -> None:
    host = _watched(tmp_path)
    began_ns = time.time_ns()

    host.read(CONFIG)

    changed_ns = (tmp_path / "etc/daemon.json").stat().st_ctime_ns
    assert began_ns - SECOND_NS < changed_ns < host.settled_ns < changed_ns + 2 * SECOND_NS


def test_a_mark_is_of_the_time_before_the_first_look(tmp_path: Path) -> None:
    host = _watched(tmp_path)
    host.kind(CONFIG)
    before = host.marks
    os.truncate(tmp_path / "etc/daemon.json", 0)

    host.read(CONFIG)

    assert host.marks == before


def test_a_directory_has_two_marks_once_it_is_listed(tmp_path: Path) -> None:
    host = _watched(tmp_path)

    host.read(CONFIG)
    passed = host.marks[str(tmp_path / "etc")]
    host.names(CONFIG.parent)

    assert len(passed) == 1
    assert len(host.marks[str(tmp_path / "etc")]) == 2
