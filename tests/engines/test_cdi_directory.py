"""The directory of the CDI specification as nodes have it: full, read-only, missing, with modes of its own."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import missing, must_run
from tests.engines.mounted import PAGE, MountedSite, fill, mount_namespace
from tests.engines.told import sentence
from tests.support.cdi_site import OWN, CdiSite
from tests.support.waiting import until, until_it_sleeps

MANY = 2 * PAGE // 100  # libraries whose mounts need more than two pages


class ByCdi(MountedSite, CdiSite):
    """A node by CDI with mounts of its own."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ByCdi]:
    if (lack := missing()) and not must_run():
        pytest.skip(lack)
    with mount_namespace() as holder:
        mounted = ByCdi(tmp_path, holder)
        with mounted.docker():
            yield mounted


def _small(site: ByCdi) -> None:
    (site.root / "run/cdi").mkdir()
    site.mount("run/cdi", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs")


def test_where_no_other_fits_one_that_is_stale_is_removed_until_there_is_room_and_one_that_holds_stays(
    site: ByCdi,
) -> None:
    _small(site)
    site.library("libnvidia-old.so")
    with site.running() as child:
        until_it_sleeps(child.pid)
        stuffing = fill(site.root / "run/cdi", 0)

        driver = site.root / "driver/usr"
        (driver / "new").mkdir()
        for name in ("libcuda.so.1", *(f"libnvidia-{number:03}.so" for number in range(MANY))):
            (driver / "new" / name).touch()
        (driver / "lib64").rename(driver / "old")
        (driver / "new").rename(driver / "lib64")
        until(lambda: not site.specification, lambda: site.status().stdout)
        until(lambda: "the stale one was removed" in site.status().stdout, lambda: site.status().stdout)
        told, probe = site.status(), site.status("--ready")
        stuffing.unlink()
        until(lambda: "libnvidia-001.so" in site.specification, lambda: site.status().stdout)
        until(lambda: site.status("--ready").returncode == 0, lambda: site.status().stdout)

        until_it_sleeps(child.pid)
        before = site.specification
        fill(site.root / "run/cdi", 0)
        for number in range(MANY, 3 * MANY):
            site.library(f"libnvidia-{number:03}.so")
        until(lambda: "no space left" in site.status().stdout, lambda: site.status().stdout)
        kept = site.specification

        until_it_sleeps(child.pid)
        child.terminate()
        assert child.wait(60) == 0
        assert child.stderr is not None
        events = [json.loads(line) for line in child.stderr]

    assert kept == before, "all that it names is there"
    assert told.returncode == probe.returncode == 1
    assert f"cannot write /var/{OWN} (no space left on device); free some space there" in probe.stdout
    removed = next(each for each in events if each["event"] == "config removed")
    assert "no container could start with it" in removed["reason"]
    assert not [each for each in events if each["event"] == "drift found"]
    assert not (site.root / OWN).exists()


def test_a_directory_that_is_read_only_is_foreseen_by_plan_and_stops_an_install_ahead_of_all_steps(
    site: ByCdi,
) -> None:
    _small(site)
    site.mount("run/cdi", "-o", "remount,ro")
    words = f"cannot write /var/{OWN} (read-only file system); mount its file system writable"
    before = site.tree(times=True)

    plan, done = site.call("plan"), site.call("install")

    assert plan.returncode == 1, plan.stdout
    assert f"! install would stop: {words}" in plan.stdout
    assert done.returncode == 1
    assert sentence(done.stderr).startswith(words)
    assert "step failed" not in done.stderr
    assert {path for path in site.tree() if "/usr/local" not in f"/{path}"} == {
        path for path in before if "/usr/local" not in f"/{path}"
    }


def test_one_that_is_right_already_is_no_matter_on_a_read_only_file_system(site: ByCdi) -> None:
    _small(site)
    assert site.call("install").returncode == 0
    site.mount("run/cdi", "-o", "remount,ro")

    plan, again = site.call("plan"), site.call("install")

    assert (plan.returncode, plan.stdout) == (0, "nothing to do\n")
    assert again.returncode == 0, again.stderr


def _modes(site: ByCdi) -> tuple[str, ...]:
    found = ((site.root / path).stat() for path in ("run/cdi", OWN))
    return tuple(f"{stat.S_IMODE(each.st_mode):o} {each.st_uid}:{each.st_gid}" for each in found)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_whatever_the_umask_is_engines_and_people_can_read_it(site: ByCdi, umask: int) -> None:
    before = os.umask(umask)
    try:
        done = site.call("install")
    finally:
        os.umask(before)

    assert done.returncode == 0, done.stderr
    assert _modes(site) == ("755 0:0", "644 0:0")


def test_a_directory_that_was_there_keeps_its_modes_and_owner_and_stays_at_the_end(site: ByCdi) -> None:
    (site.root / "run/cdi").mkdir()
    (site.root / "run/cdi").chmod(0o2710)
    os.chown(site.root / "run/cdi", 12, 34)

    assert site.call("install").returncode == 0
    installed = _modes(site)
    assert site.call("uninstall").returncode == 0

    assert installed == ("2710 12:34", "644 0:34")
    status = (site.root / "run/cdi").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o2710, 12, 34)
