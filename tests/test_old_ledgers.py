"""Ledgers as earlier versions wrote them: they give everything back, for ever. None of these files is ever rewritten."""

import json
import shutil
from pathlib import Path

import pytest

from installer.record.rows_json import VERSION, dumps, loads
from tests.test_verbs import LEDGER, Site

LEDGERS = Path(__file__).parent / "golden/ledgers"


def _tree(root: Path) -> dict[str, bytes | str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_symlink() or not path.is_dir())
    return {
        str(path.relative_to(root)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in files
    }


@pytest.fixture(params=sorted(path.name for path in LEDGERS.iterdir()))
def ledger(request: pytest.FixtureRequest) -> Path:
    """Return the directory of one old ledger: a node as it was left, and as it was before."""
    return LEDGERS / str(request.param)


def test_uninstall_gives_everything_back(ledger: Path, tmp_path: Path) -> None:
    site = Site(tmp_path)
    shutil.rmtree(site.root)
    shutil.copytree(ledger / "node", site.root, symlinks=True)

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert _tree(site.root) == _tree(ledger / "before")


def test_an_install_over_it_takes_over(ledger: Path, tmp_path: Path) -> None:
    site = Site(tmp_path)
    shutil.rmtree(site.root)
    shutil.copytree(ledger / "node", site.root, symlinks=True)

    assert site.call("install", "--set-as-default").returncode == 0
    assert site.call("uninstall").returncode == 0
    # An engine that was not configured then was configured now, and has nothing to leave either.
    assert _tree(site.root) == _tree(ledger / "before")


def test_what_it_says_can_be_said_in_the_present_format(ledger: Path) -> None:
    held = loads((ledger / "node" / LEDGER).read_bytes())

    assert loads(dumps(held)) == held


def test_a_ledger_of_a_later_format_is_refused_and_names_the_backups(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.call("install").returncode == 0
    rows = json.loads((site.root / LEDGER).read_text())
    rows["version"] = VERSION + 1
    (site.root / LEDGER).write_text(json.dumps(rows))
    before = site.tree(times=True)

    done = site.call("uninstall")

    assert done.returncode == 1
    assert f"version {VERSION + 1}" in done.stderr
    assert "/usr/local/nvidia/.toolkit-installer/backups" in done.stderr
    assert site.tree(times=True) == before


@pytest.mark.parametrize("flaw", ["missing", "damaged"])
def test_a_saved_copy_that_cannot_be_trusted_is_said_and_nothing_is_guessed(
    tmp_path: Path, flaw: str
) -> None:
    site = Site(tmp_path)
    assert site.call("install").returncode == 0
    for backup in (site.root / LEDGER).with_name("backups").iterdir():
        if flaw == "missing":
            backup.unlink()
        else:
            backup.write_bytes(backup.read_bytes()[:-1])
    before = site.tree(times=True)

    done = site.call("uninstall")

    assert done.returncode == 4
    assert "saved copy /usr/local/nvidia/.toolkit-installer/backups/" in done.stderr
    assert "by hand" in done.stderr
    assert site.tree(times=True) == before
