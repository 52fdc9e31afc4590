"""What of ours others than root may not touch: it is given back to root, and nothing else is.

tests/test_integrity.py holds what lies in our directory; here is what lies elsewhere, and what stays.
"""

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
SAVED = f"{LAYOUT.backups}/0123"
PIDS, SPECIFICATION = "/run/ours", "/var/run/cdi/nvidia.com-gpu.json"
CDI = str(PurePosixPath(SPECIFICATION).parent)
USUAL = {str(LAYOUT.home): 0o755, PIDS: 0o755, CDI: 0o755, SAVED: 0o600, SPECIFICATION: 0o644}
READABLE, WRITABLE = "readable by others than root", "writable by others than root"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a node with all of that, each with the mode that it should have."""
    for path, mode in USUAL.items():
        place = tmp_path / path[1:]
        if mode & 0o100:
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.touch()
        place.chmod(mode)
    return tmp_path


def holding(*directories: str) -> Record:
    row = ConfigRow(OWNER, PurePosixPath(SPECIFICATION), None, None, (), ())
    made = tuple(map(PurePosixPath, directories))
    return Record(configs=(row,), directories=made, pid_file=PurePosixPath(PIDS, "toolkit.pid"))


def flaws(root: Path, held: Record) -> dict[str, str]:
    return {str(path): flaw for path, _, flaw in list_exposed(Host.under(PurePosixPath(root)), LAYOUT, held)}


def restored(root: Path, held: Record) -> dict[str, int]:
    restore_access(Host.under(PurePosixPath(root)), LAYOUT, held)
    return {path: stat.S_IMODE((root / path[1:]).stat().st_mode) for path in USUAL}


@pytest.mark.parametrize(
    ("path", "mode", "flaw", "made", "left"),
    [
        pytest.param(SAVED, 0o644, READABLE, (), 0o600, id="a saved text"),
        pytest.param(SPECIFICATION, 0o666, WRITABLE, (), 0o644, id="our specification"),
        pytest.param(PIDS, 0o777, WRITABLE, (PIDS,), 0o755, id="the pidfile's directory, which we made"),
        pytest.param(CDI, 0o777, WRITABLE, (CDI,), 0o755, id="the specification's, which we made"),
        pytest.param(CDI, 0o777, WRITABLE, (), 0o777, id="a directory of others is told alone"),
    ],
)
def test_what_is_ours_is_put_right(  # noqa: PLR0913, PLR0917 - the columns
    root: Path, path: str, mode: int, flaw: str, made: tuple[str, ...], left: int
) -> None:
    (root / path[1:]).chmod(mode)

    assert flaws(root, holding(*made)) == {path: flaw}
    assert restored(root, holding(*made)) == USUAL | {path: left}
    assert bool(flaws(root, holding(*made))) is (left == mode)


def test_a_sticky_directory_and_a_link_keep_others_away_by_themselves(root: Path) -> None:
    (root / PIDS[1:]).chmod(0o1777)
    (root / SAVED[1:]).unlink()
    (root / SAVED[1:]).symlink_to("elsewhere")

    assert flaws(root, holding()) == {}


def test_a_file_system_without_modes_stops_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, object]] = []
    monkeypatch.setattr(log, "write", lambda _, event, fields: events.append((event, fields["reason"])))

    def refuses(*_: object) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")  # as vfat has it

    (root / SAVED[1:]).chmod(0o644)
    monkeypatch.setattr(os, "fchmod", refuses)

    assert restored(root, holding())[SAVED] == 0o644
    assert events == [("exposed file not repaired", f"it is {READABLE}")]
