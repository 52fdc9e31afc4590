"""What of ours others than root may not touch: it is given back to root, and nothing else is."""

import os
import stat
from pathlib import Path, PurePosixPath
from typing import NoReturn

import pytest

from installer.host.events import log
from installer.host.files import Host
from installer.model.facts import OWNER, ConfigRow, Record
from installer.model.files import Layout
from installer.payload.installed import list_exposed, restore_access

LAYOUT = Layout()
HOME = str(LAYOUT.home)
SAVED = f"{LAYOUT.backups}/0123"
PIDS = "/run/ours"
HELD = Record(pid_file=PurePosixPath(PIDS, "toolkit.pid"))
USUAL = {
    HOME: 0o755,
    str(LAYOUT.versions): 0o755,
    str(LAYOUT.backups): 0o700,
    SAVED: 0o600,
    str(LAYOUT.ledger): 0o600,
    f"{HOME}/lock": 0o600,
    PIDS: 0o755,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a node with all of that, each with the mode that it should have."""
    for path, mode in USUAL.items():
        place = tmp_path / path[1:]
        if mode & 0o100:
            place.mkdir(parents=True)
        else:
            place.touch()
        place.chmod(mode)
    return tmp_path


def flaws(root: Path, held: Record = HELD) -> dict[str, str]:
    return {str(path): flaw for path, _, flaw in list_exposed(Host.under(PurePosixPath(root)), LAYOUT, held)}


def restored(root: Path, held: Record = HELD) -> dict[str, int]:
    restore_access(Host.under(PurePosixPath(root)), LAYOUT, held)
    return {path: stat.S_IMODE((root / path[1:]).stat().st_mode) for path in USUAL}


def test_a_saved_text_that_others_may_read_is_closed(root: Path) -> None:
    (root / SAVED[1:]).chmod(0o644)

    assert flaws(root) == {SAVED: "readable by others than root"}
    assert restored(root) == USUAL
    assert flaws(root) == {}


@pytest.mark.parametrize("ours", [True, False])
def test_the_directory_of_the_pidfile_is_put_right_where_we_made_it(root: Path, *, ours: bool) -> None:
    (root / PIDS[1:]).chmod(0o777)
    held = Record(pid_file=HELD.pid_file, directories=(PurePosixPath(PIDS),) if ours else ())

    assert flaws(root, held) == {PIDS: "writable by others than root"}
    assert restored(root, held)[PIDS] == (0o755 if ours else 0o777)
    assert flaws(root, Record()) == {}


@pytest.mark.parametrize("ours", [True, False])
def test_our_cdi_specification_is_put_right_and_its_directory_where_we_made_it(
    tmp_path: Path, *, ours: bool
) -> None:
    path = PurePosixPath("/var/run/cdi/nvidia.com-gpu.json")
    row = ConfigRow(OWNER, path, None, None, (), ())
    held = Record(configs=(row,), directories=(path.parent,) if ours else ())
    specification = tmp_path / str(path)[1:]
    specification.parent.mkdir(parents=True)
    specification.touch()
    specification.chmod(0o666)
    specification.parent.chmod(0o777)

    before = flaws(tmp_path, held)
    restore_access(Host.under(PurePosixPath(tmp_path)), LAYOUT, held)

    assert before == dict.fromkeys(map(str, (path, path.parent)), "writable by others than root")
    assert flaws(tmp_path, held).keys() == (set() if ours else {str(path.parent)})
    assert stat.S_IMODE(specification.stat().st_mode) == 0o644


def test_a_sticky_directory_and_a_link_keep_others_away_by_themselves(root: Path) -> None:
    (root / PIDS[1:]).chmod(0o1777)
    (root / SAVED[1:]).unlink()
    (root / SAVED[1:]).symlink_to("elsewhere")

    assert flaws(root) == {}


def test_a_file_system_without_modes_stops_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, object]] = []
    monkeypatch.setattr(log, "write", lambda _, event, fields: events.append((event, fields["reason"])))

    def refuses(*_: object) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")  # as vfat has it

    (root / SAVED[1:]).chmod(0o644)
    monkeypatch.setattr(os, "fchmod", refuses)

    assert restored(root)[SAVED] == 0o644
    assert events == [("access not restored", "it is readable by others than root")]
