"""The modes of our files on a node, whatever the umask: as the table of docs/security-host.md says."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from installer.host.files import Host
from installer.lifecycle import readiness
from installer.model.facts import Record
from tests.support.neighbours import only_as_root
from tests.support.site import HOME, PIDFILE, STATE, TOOLKIT, Site, ended

FEATURES = "/etc/features.d/toolkit-installer"
TEXTFILE = "/var/lib/textfile/toolkit-installer.prom"
MODES = {
    HOME: 0o755,
    f"{HOME}/versions": 0o755,
    TOOLKIT: 0o755,
    f"{HOME}/ledger": 0o600,
    f"{HOME}/lock": 0o600,
    f"{HOME}/backups": 0o700,
    PIDFILE: 0o600,
    f"{PIDFILE}.options": 0o600,
    STATE: 0o644,
    TEXTFILE[1:]: 0o644,
    FEATURES[1:]: 0o644,
}


UMASKS = pytest.mark.parametrize("mask", [0o000, 0o077], ids=["open", "closed"])


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@UMASKS
def test_each_file_of_a_run_has_its_mode(site: Site, mask: int) -> None:
    for path in (FEATURES, TEXTFILE):
        (site.root / path[1:]).parent.mkdir(parents=True)

    with umask(mask), site.running("--metrics-textfile", TEXTFILE, "--nfd-features", FEATURES) as child:
        modes = {path: _mode(site.root / path) for path in MODES}
        saved = {_mode(path) for path in (site.root / HOME / "backups").iterdir()}
        ended(child)

    assert modes == MODES
    assert saved == {0o600}


@UMASKS
def test_readiness_is_for_all_to_read(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        readiness.publish(Host.under(PurePosixPath(tmp_path)), PurePosixPath("/ready"), Record())

    assert _mode(tmp_path / "ready") == 0o644


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


@only_as_root
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_where_the_lock_cannot_be_made_nothing_is_changed(installed: Site, verb: str) -> None:
    site = installed
    (site.root / HOME / "lock").unlink()
    before = site.tree()
    options = ("--log-format", "json", *(("--set-as-default",) if verb == "install" else ()))
    command = site.command(verb, *options)

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", site.root / HOME, sys.executable, *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    assert '"problem"' in done.stderr
    assert site.tree() == before
