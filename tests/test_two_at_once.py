"""Two instances, stale pidfiles and recycled pids: one works, and nobody is kept out by what is long gone."""

import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.site import PIDFILE, PROJECT, Site, sentence
from tests.support.waiting import until


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("verb", ["run", "install", "uninstall"])
@pytest.mark.parametrize("pid_file", [PIDFILE, "run/other.pid"], ids=["the same pidfile", "another pidfile"])
def test_a_second_instance_is_refused_with_the_pid_and_the_start_of_the_first(
    site: Site, verb: str, pid_file: str
) -> None:
    import psutil

    more = ("--pid-file", str(site.root / pid_file)) if verb == "run" else ()
    with site.running() as child:
        before = site.tree(times=True)

        done = site.call(verb, *more)

        assert done.returncode == 3
        found = re.search(r": pid (\d+), started (\S+ \S+) UTC\)", sentence(done))
        assert found
        assert int(found[1]) == child.pid
        started = datetime.strptime(f"{found[2]}+0000", "%Y-%m-%d %H:%M:%S%z")
        really = datetime.fromtimestamp(psutil.Process(child.pid).create_time(), tz=UTC)
        assert abs((started - really).total_seconds()) <= 2
        assert site.tree(times=True) == before
        assert (site.root / PIDFILE).read_text() == f"{child.pid}\n"
        child.terminate()
        assert child.wait(30) == 0


def test_of_twenty_started_at_once_exactly_one_works(site: Site, tmp_path: Path) -> None:
    before = site.tree()
    environment = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT)}
    said = [tmp_path / f"said by {number}" for number in range(20)]
    children = []
    for each in said:
        with each.open("wb") as file:
            children.append(subprocess.Popen(site.command("run"), stderr=file, env=environment))
    until(lambda: sum(child.poll() is None for child in children) <= 1)
    codes = [child.poll() for child in children]
    first = next(child for child in children if child.poll() is None)
    until((site.root / "etc/crio/crio.conf.d/99-nvidia.toml").exists)
    first.terminate()

    assert first.wait(30) == 0
    ended = zip(codes, said, strict=True)
    assert [(code, file.read_text()) for code, file in ended if code not in {3, None}] == []
    assert codes.count(None) == 1
    assert site.tree() == before


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{os.getpid()}\n", id="a recycled pid"),
        pytest.param("999999999\n", id="a pid that nobody has"),
        pytest.param("", id="empty"),
        pytest.param("\0\0\0", id="torn by a crash"),
    ],
)
def test_a_pidfile_that_nobody_holds_blocks_nobody(site: Site, text: str) -> None:
    (site.root / PIDFILE).parent.mkdir(parents=True)
    (site.root / PIDFILE).write_text(text)

    with site.running() as child:
        assert (site.root / PIDFILE).read_text() == f"{child.pid}\n"
        child.terminate()
        assert child.wait(30) == 0

    assert not (site.root / PIDFILE).exists()


def test_the_pidfile_of_one_keeps_another_install_dir_out_and_stays_as_it_is(site: Site) -> None:
    with site.running() as child:
        before = site.tree()

        done = site.call("run", "--install-dir", "/opt/nvidia")

        assert done.returncode == 3
        assert f"pid {child.pid}" in sentence(done)
        assert (site.root / PIDFILE).read_text() == f"{child.pid}\n"
        assert site.tree() == before
        child.terminate()
        assert child.wait(30) == 0
