"""What of ours others than root may not touch: it is given back to root, and nothing else is."""

import os
import stat
from pathlib import Path, PurePosixPath
from typing import NoReturn

import pytest

from installer.host.files import Host
from installer.model.paths import Layout
from installer.model.record import Record
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


def modes(root: Path) -> dict[str, int]:
    return {path: stat.S_IMODE((root / path[1:]).stat().st_mode) for path in USUAL}


def flaws(root: Path, held: Record = HELD) -> dict[str, str]:
    return {str(path): flaw for path, _, flaw in list_exposed(Host.under(PurePosixPath(root)), LAYOUT, held)}


def restored(root: Path, held: Record = HELD) -> dict[str, int]:
    restore_access(Host.under(PurePosixPath(root)), LAYOUT, held)
    return modes(root)


def test_what_is_as_it_should_be_is_left_alone(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert flaws(root) == {}
    assert restored(root) == USUAL
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("path", "mode", "flaw"),
    [
        pytest.param(HOME, 0o777, "writable by others than root", id="our directory"),
        pytest.param(HOME, 0o775, "writable by others than root", id="our directory, by a group"),
        pytest.param(str(LAYOUT.versions), 0o777, "writable by others than root", id="the versions"),
        pytest.param(str(LAYOUT.backups), 0o755, "readable by others than root", id="the saved texts"),
        pytest.param(SAVED, 0o644, "readable by others than root", id="one of them"),
        pytest.param(str(LAYOUT.ledger), 0o666, "writable by others than root", id="the ledger"),
        pytest.param(f"{HOME}/lock", 0o640, "readable by others than root", id="the lock"),
    ],
)
def test_what_others_may_touch_is_given_back_to_root(
    root: Path, path: str, mode: int, flaw: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / path[1:]).chmod(mode)

    assert flaws(root) == {path: flaw}
    assert restored(root) == USUAL
    said = capfd.readouterr().err
    assert '"event": "access restored"' in said
    assert f'"reason": "it was {flaw}"' in said


@pytest.mark.parametrize("ours", [True, False])
def test_the_directory_of_the_pidfile_is_put_right_where_we_made_it(root: Path, *, ours: bool) -> None:
    (root / PIDS[1:]).chmod(0o777)
    held = Record(pid_file=HELD.pid_file, directories=(PurePosixPath(PIDS),) if ours else ())

    assert flaws(root, held) == {PIDS: "writable by others than root"}
    assert restored(root, held)[PIDS] == (0o755 if ours else 0o777)
    assert flaws(root, Record()) == {}


def test_a_sticky_directory_and_a_link_keep_others_away_by_themselves(root: Path) -> None:
    (root / PIDS[1:]).chmod(0o1777)
    (root / SAVED[1:]).unlink()
    (root / SAVED[1:]).symlink_to("elsewhere")

    assert flaws(root) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_somebody_else_is_taken_back(root: Path) -> None:
    (root / SAVED[1:]).chmod(0o600)
    os.chown(root / SAVED[1:], 65534, -1)

    (flaw,) = flaws(root).items()
    assert flaw == (SAVED, "owned by another user than root")
    restored(root)
    assert (root / SAVED[1:]).stat().st_uid == os.geteuid()


def test_a_file_system_without_modes_stops_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")  # as vfat has it

    (root / SAVED[1:]).chmod(0o644)
    monkeypatch.setattr(os, "fchmod", refuses)

    assert restored(root)[SAVED] == 0o644
    said = capfd.readouterr().err
    assert '"event": "access not restored"' in said
    assert '"reason": "it is readable by others than root"' in said
