"""Ledgers as earlier versions wrote them: they give everything back, for ever. None of these files is ever rewritten."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.support.site import LEDGER, Site, sentence
from tests.support.tree import Aspect, tree

VERSION = 1  # of the format that this program writes
LEDGERS = Path(__file__).parent / "golden/ledgers"


def _tree(root: Path) -> dict[str, str]:
    """Return the files alone, without their modes: git keeps no more of a golden directory."""
    found = tree(root, Aspect.CONTENT)
    return {
        path: what for path, what in found.items() if (root / path).is_symlink() or not (root / path).is_dir()
    }


@pytest.fixture(params=sorted(path.name for path in LEDGERS.iterdir()))
def ledger(request: pytest.FixtureRequest) -> Path:
    """Return the directory of one old ledger: a node as it was left, and as it was before."""
    return LEDGERS / str(request.param)


def test_uninstall_undoes_everything_that_an_old_ledger_holds(ledger: Path, tmp_path: Path) -> None:
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
    assert site.status().returncode == 0
    upgraded = site.tree(times=True)
    assert site.call("install", "--set-as-default").returncode == 0
    assert site.tree(times=True) == upgraded, "nothing is left to do"
    assert site.call("uninstall").returncode == 0
    # An engine that was not configured then was configured now, and has nothing to leave either.
    assert _tree(site.root) == _tree(ledger / "before")


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


def _spoilt(site: Site, flaw: str) -> None:
    backups = (site.root / LEDGER).with_name("backups")
    for backup in backups.iterdir():
        if flaw == "damaged":
            backup.write_bytes(backup.read_bytes()[:-1])
            continue
        backup.unlink()
        if flaw == "a directory":
            backup.mkdir()
        if flaw == "a link":
            backup.symlink_to("/etc/passwd")
    if flaw == "all gone":
        backups.rmdir()


FLAWS = pytest.mark.parametrize("flaw", ["missing", "damaged", "a link", "all gone"])


@FLAWS
def test_configs_come_back_without_their_saved_copies_by_our_keys(tmp_path: Path, flaw: str) -> None:
    site = Site(tmp_path)
    before = site.tree()
    assert site.call("install").returncode == 0
    _spoilt(site, flaw)

    told, done = site.status(), site.call("uninstall")

    assert told.returncode == 1
    assert told.stdout.count("is missing or damaged: install puts it right") == 2
    assert done.returncode == 0, done.stderr
    assert site.tree() == before


@FLAWS
def test_an_install_saves_a_lost_copy_anew_and_changes_nothing_else(tmp_path: Path, flaw: str) -> None:
    site = Site(tmp_path)
    assert site.call("install").returncode == 0
    before = site.tree()
    _spoilt(site, flaw)

    done = site.call("install")

    assert done.returncode == 0, done.stderr
    assert "nothing changed" in done.stderr
    assert site.tree() == before
    assert site.status().returncode == 0


@FLAWS
def test_a_lost_copy_is_told_though_the_config_was_edited_since(tmp_path: Path, flaw: str) -> None:
    site = Site(tmp_path)
    before = site.tree()
    assert site.call("install").returncode == 0
    config = site.root / "etc/docker/daemon.json"
    config.write_text(config.read_text().replace('"100m"', '"200m"'))
    edited = site.status().returncode
    _spoilt(site, flaw)

    told = site.status()
    done = site.call("install")

    assert (edited, told.returncode, done.returncode) == (0, 1, 0)
    assert told.stdout.count("is missing or damaged: install puts it right") == 2
    assert site.status().returncode == 0, site.status().stdout
    assert site.call("uninstall").returncode == 0
    config.write_text(config.read_text().replace('"200m"', '"100m"'))
    assert site.tree() == before


def test_a_file_that_we_wrote_whole_stays_until_somebody_says_what_was_there(tmp_path: Path) -> None:
    site = Site(tmp_path)
    before = site.tree()
    assert site.call("install").returncode == 0
    ours = site.root / "etc/cdi/nvidia.yaml"
    ours.parent.mkdir()
    ours.write_text("ours\n")
    rows = json.loads((site.root / LEDGER).read_text())
    rows["configs"].append(
        {
            "engine": "cdi",
            "path": "/etc/cdi/nvidia.yaml",
            "syntax": None,
            "original": rows["configs"][0]["original"] | {"digest": hashlib.sha256(b"theirs").hexdigest()},
            "ours": [hashlib.sha256(b"ours\n").hexdigest()],
            "target": None,
            "edits": [],
        }
    )
    (site.root / LEDGER).write_text(json.dumps(rows))

    told, done = site.status(), site.call("uninstall")
    left = site.tree()
    ours.write_text("theirs\n")
    again = site.call("uninstall")

    assert told.returncode == 1
    assert "write the right file there, then uninstall" in told.stdout
    assert done.returncode == 4
    assert sentence(done).startswith("cannot restore /etc/cdi/nvidia.yaml (its saved copy")
    assert {name: left[name] for name in before if before[name] != left[name]} == {}
    assert bytes.fromhex(left["etc/cdi/nvidia.yaml"].split()[1]) == b"ours\n"
    assert again.returncode == 0, again.stderr
    assert ours.read_text() == "theirs\n"
    assert site.tree().keys() - before.keys() == {"etc/cdi", "etc/cdi/nvidia.yaml"}
