"""Two instances, stale pidfiles and recycled pids: one works, and nobody is kept out by what is long gone."""

import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.site import PIDFILE, PROJECT, Site, ended
from tests.support.waiting import until


def test_a_second_instance_is_refused_with_the_pid_and_the_start_of_the_first(site: Site) -> None:
    import psutil

    with site.running() as child:
        before = site.tree(times=True)
        really = datetime.fromtimestamp(psutil.Process(child.pid).create_time(), tz=UTC)
        for verb, *more in (
            ("run",),
            ("run", "--pid-file", str(site.root / "run/other.pid")),
            ("run", "--install-dir", "/opt/nvidia"),
            ("install",),
            ("uninstall",),
        ):
            said = site.refuses(verb, *more, code=3)

            found = re.search(r": pid (\d+), started (\S+ \S+) UTC\)", said)
            assert found, said
            assert int(found[1]) == child.pid
            started = datetime.strptime(f"{found[2]}+0000", "%Y-%m-%d %H:%M:%S%z")
            assert abs((started - really).total_seconds()) <= 2
        assert site.tree(times=True) == before
        assert site.read(PIDFILE) == f"{child.pid}\n"
        ended(child)


def test_of_twenty_started_at_once_exactly_one_works(clean: Site, tmp_path: Path) -> None:
    environment = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT)}
    said = [tmp_path / f"said by {number}" for number in range(20)]
    children = []
    for each in said:
        with each.open("wb") as file:
            children.append(subprocess.Popen(clean.command("run"), stderr=file, env=environment))
    until(lambda: sum(child.poll() is None for child in children) <= 1)
    codes = [child.poll() for child in children]
    first = next(child for child in children if child.poll() is None)
    until((clean.root / "etc/crio/crio.conf.d/99-nvidia.toml").exists)
    first.terminate()

    assert first.wait(30) == 0
    ended = zip(codes, said, strict=True)
    assert [(code, file.read_text()) for code, file in ended if code not in {3, None}] == []
    assert codes.count(None) == 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{os.getpid()}\n", id="a recycled pid"),
        pytest.param("", id="empty"),
        pytest.param("\0\0\0", id="torn by a crash"),
    ],
)
def test_a_pidfile_that_nobody_holds_blocks_nobody(site: Site, text: str) -> None:
    site.write(PIDFILE, text)

    with site.running() as child:
        assert site.read(PIDFILE) == f"{child.pid}\n"
        ended(child)

    assert not (site.root / PIDFILE).exists()
