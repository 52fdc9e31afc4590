import os
import time
from pathlib import Path, PurePosixPath

from installer.host.glance import mark
from installer.host.watched import SECOND_NS, Watched, is_lasting

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


def test_a_mark_whose_time_an_image_was_made_with_may_be_that_of_another_image() -> None:
    # Of a program on an ext4 image with times of SOURCE_DATE_EPOCH; of another such image it was the same.
    of_image, of_kernel = (f"1798:16:33261:0:10864:170000000000000000{last}" for last in (0, 1))
    began_ns = 1795400607 * SECOND_NS

    assert not is_lasting("/proc/mounted", of_image, began_ns)
    assert is_lasting("/proc/mounted", of_kernel, began_ns)
    assert is_lasting("/of-the-root", of_image, began_ns)


def test_what_has_no_time_lasts_and_what_is_young_does_not(tmp_path: Path) -> None:
    (tmp_path / "young").write_text("")
    young = str(tmp_path / "young")

    assert is_lasting("/none", "2", began_ns=1)
    assert is_lasting(str(tmp_path), mark(str(tmp_path)), began_ns=1)
    assert not is_lasting(young, mark(young), began_ns=(tmp_path / "young").stat().st_ctime_ns + 1)
