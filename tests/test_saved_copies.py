"""Saved copies of configs that are missing, damaged or changed: what comes back, and what stays."""

import hashlib
import json

import pytest

from tests.support.site import DAEMON_JSON, LEDGER, Site, sentence
from tests.support.stand_in import CONFIGS


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


@pytest.mark.parametrize("saved_anew", [False, True], ids=["at once", "after an install saved them anew"])
@pytest.mark.parametrize("flaw", ["missing", "damaged", "a link", "all gone"])
def test_configs_come_back_without_their_saved_copies_by_our_keys(
    installed: Site, flaw: str, *, saved_anew: bool
) -> None:
    theirs = CONFIGS | {DAEMON_JSON: CONFIGS[DAEMON_JSON].replace("100m", "200m")}
    installed.write(DAEMON_JSON, installed.read(DAEMON_JSON).replace("100m", "200m"))
    assert installed.status().returncode == 0
    _spoilt(installed, flaw)

    told = installed.status()
    if saved_anew:
        assert "nothing changed" in installed.install().stderr
        assert installed.status().returncode == 0
    installed.uninstall()

    assert told.returncode == 1
    assert told.stdout.count("is missing or damaged: install puts it right") == 2
    assert {path: installed.read(path) for path in CONFIGS} == theirs
    assert not (installed.root / "usr").exists()


def test_a_file_that_we_wrote_whole_stays_until_somebody_says_what_was_there(site: Site) -> None:
    before = site.tree()
    site.install()
    ours = site.write("etc/cdi/nvidia.yaml", "ours\n")
    digests = [hashlib.sha256(text).hexdigest() for text in (b"theirs", b"ours\n")]
    rows = json.loads(site.read(LEDGER))
    original = rows["configs"][0]["original"] | {"digest": digests[0]}
    row: dict[str, object] = {
        "engine": "cdi",
        "path": "/etc/cdi/nvidia.yaml",
        "syntax": None,
        "target": None,
        "edits": [],
    }
    rows["configs"].append(row | {"original": original, "ours": digests[1:]})
    site.write(LEDGER, json.dumps(rows))

    told, done = site.status(), site.uninstall(code=4)

    assert told.returncode == 1
    assert "write the right file there, then uninstall" in told.stdout
    assert sentence(done).startswith("cannot restore /etc/cdi/nvidia.yaml (its saved copy")
    left = site.tree()
    assert [name for name in before if before[name] != left[name]] == []
    assert ours.read_text() == "ours\n"
    ours.write_text("theirs\n")
    site.uninstall()
    assert ours.read_text() == "theirs\n"
    assert site.tree().keys() - before.keys() == {"etc/cdi", "etc/cdi/nvidia.yaml"}
