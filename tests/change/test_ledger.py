"""What lies beside the ledger: saved copies, and what a killed run has left."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger, hold, is_ledger_lost, read_record, read_saved
from installer.errors import InstallerError
from installer.host.files import Host
from installer.lifecycle.installation import read_installation
from installer.model.facts import ConfigRow, Record, Saved
from installer.model.files import File, Layout, Meta
from installer.model.options import Options

LAYOUT = Layout()
CONFIG = PurePosixPath("/etc/docker/daemon.json")
THEIRS, OTHER = File(b"{}", Meta(0o640)), File(b"[]")


def row(file: File | None) -> ConfigRow:
    return ConfigRow("docker", CONFIG, None, Saved.of(file) if file else None, (), ())


def at(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")


def copies(root: Path) -> list[str]:
    place = at(root, LAYOUT.backups)
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.under(PurePosixPath(tmp_path))


def test_copies_are_kept_that_a_row_names(tmp_path: Path, host: Host) -> None:
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        ledger.save([THEIRS, OTHER, File(b"old")])
        ledger.write(replace(ledger.held, configs=(row(THEIRS),)))
        ledger.drop_backups()
        assert copies(tmp_path) == [THEIRS.digest]

        ledger.write(replace(ledger.held, configs=(row(None),)))
        ledger.drop_backups()
        assert not at(tmp_path, LAYOUT.backups).exists()


@pytest.mark.parametrize(
    ("spoil", "lost"),
    [
        (lambda _: None, False),
        (lambda copy: copy.unlink(), True),
        (lambda copy: copy.write_text("spoilt"), True),
        (lambda copy: (copy.unlink(), copy.mkdir()), True),
    ],
    ids=["whole", "missing", "spoilt", "a directory"],
)
def test_a_copy_that_is_not_what_was_saved_is_lost_and_saved_anew(
    tmp_path: Path, host: Host, spoil: object, *, lost: bool
) -> None:
    assert callable(spoil)
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        ledger.save([THEIRS])
        ledger.write(replace(ledger.held, configs=(row(THEIRS),)))
        copy = at(tmp_path, LAYOUT.backups / THEIRS.digest)
        assert copy.stat().st_mode & 0o777 == 0o600
        spoil(copy)

        assert read_saved(host, LAYOUT, row(THEIRS).original) == (None if lost else THEIRS)
        assert read_saved(host, LAYOUT, None) is None
        if not copy.is_dir():
            ledger.save([THEIRS])
            assert read_saved(host, LAYOUT, row(THEIRS).original) == THEIRS


def test_a_link_in_the_place_of_a_copy_is_not_written_through(tmp_path: Path, host: Host) -> None:
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        at(tmp_path, LAYOUT.backups).mkdir()
        at(tmp_path, LAYOUT.backups / THEIRS.digest).symlink_to("/victim")
        (tmp_path / "victim").write_text("whole")
        ledger.save([THEIRS])

    assert (tmp_path / "victim").read_text() == "whole"


def test_rows_are_written_once_and_again_where_their_file_has_gone(tmp_path: Path, host: Host) -> None:
    held = Record(configs=(row(None),))
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        held = replace(held, directories=ledger.held.directories)
        ledger.write(held)
        first = at(tmp_path, LAYOUT.ledger).stat().st_ino
        ledger.write(held)
        assert at(tmp_path, LAYOUT.ledger).stat().st_ino == first
        at(tmp_path, LAYOUT.ledger).unlink()
        assert is_ledger_lost(host, LAYOUT) is False  # but for its lock nothing is there
        ledger.write(held)

    assert read_record(host, LAYOUT) == held


def test_directories_are_made_and_known_first(tmp_path: Path, host: Host) -> None:
    (tmp_path / "etc").mkdir()
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        ledger.make_directories(CONFIG.parent)
        ledger.make_directories(CONFIG.parent)
        assert CONFIG.parent in ledger.held.directories
        assert PurePosixPath("/etc") not in ledger.held.directories

    assert not (tmp_path / "etc/docker").exists()  # nothing is held, so nothing is left
    assert not (tmp_path / "usr").exists()


def test_what_is_not_ours_keeps_the_directory(tmp_path: Path, host: Host) -> None:
    with (
        pytest.raises(InstallerError, match=r"it still holds notes\.txt\)"),
        hold(lambda: Ledger.open(host, LAYOUT)),
    ):
        at(tmp_path, LAYOUT.home / "notes.txt").write_text("mine")


@pytest.mark.parametrize("stands", [True, False])
def test_copies_of_a_lost_ledger_are_kept_until_their_configs_say_so_again(
    tmp_path: Path, host: Host, *, stands: bool
) -> None:
    at(tmp_path, LAYOUT.backups).mkdir(parents=True)
    at(tmp_path, LAYOUT.backups / THEIRS.digest).write_bytes(THEIRS.content)
    if stands:
        at(tmp_path, CONFIG).parent.mkdir(parents=True)
        at(tmp_path, CONFIG).write_bytes(THEIRS.content)
    assert is_ledger_lost(host, LAYOUT)

    if stands:
        with hold(lambda: Ledger.open(host, LAYOUT)):
            assert at(tmp_path, LAYOUT.unclaimed / THEIRS.digest).exists()
        assert not at(tmp_path, LAYOUT.home).exists()
    else:
        with (
            pytest.raises(InstallerError, match="ledger is lost"),
            hold(lambda: Ledger.open(host, LAYOUT)),
        ):
            pass
        assert at(tmp_path, LAYOUT.unclaimed / THEIRS.digest).read_bytes() == THEIRS.content


def test_status_reads_a_ledger_again_that_changes_while_it_looks(tmp_path: Path) -> None:
    """As an install does meanwhile: it saves what it has found, writes that down, and drops the copy of before."""

    class Busy(Host):
        def read(self, path: PurePosixPath) -> File | None:
            if path == LAYOUT.backups / THEIRS.digest:
                with hold(lambda: Ledger.open(Host.under(PurePosixPath(tmp_path)), LAYOUT)) as ledger:
                    _save(ledger, OTHER)
            return super().read(path)

    host = Busy.under(PurePosixPath(tmp_path))
    at(tmp_path, CONFIG).parent.mkdir(parents=True)
    at(tmp_path, CONFIG).write_text("ours")
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        _save(ledger, THEIRS)

    told = {line.what: line.state for line in read_installation(host, Options()).files}

    assert told[str(CONFIG)] == "as we wrote it"


def _save(ledger: Ledger, file: File) -> None:
    ledger.save([file])
    rows = (replace(row(file), ours=(File(b"ours").digest,)),)
    ledger.write(replace(ledger.held, configs=rows, finished=True))
    ledger.drop_backups()
