"""An install over a real directory of NVIDIA's is killed between two system calls: an uninstall ends all the same."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.site import PROJECT, Site

TOOLKIT = "usr/local/nvidia/toolkit"
HOME = "usr/local/nvidia/.toolkit-installer"
# The real program, which kills itself as it enters the first call of ``os.NAME`` with this word.
KILLED = """
import os, shutil, signal, sys
name, word = sys.argv[1:3]
real = getattr(os, name)
def call(first, *more, **named):
    if str(first).endswith(word):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(first, *more, **named)
setattr(os, name, call)
del sys.argv[1:3]
from installer.__main__ import main
main()
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    (site.root / TOOLKIT).mkdir(parents=True)
    (site.root / TOOLKIT / "nvidia-container-runtime").write_text("#! /bin/sh\n")
    return site


def killed(site: Site, verb: str, call: str, word: str) -> int:
    arguments = site.command(verb)[3:]
    command = [sys.executable, "-c", KILLED, call, word, *arguments]
    return subprocess.run(command, check=False, cwd=PROJECT, capture_output=True).returncode


def test_before_the_link_in_its_place_is_named(site: Site) -> None:
    before = site.tree()

    code = killed(site, "install", "rename", ".replaced.toolkit-installer")
    there = [path.name for path in (site.root / HOME).iterdir()]
    done = site.call("uninstall")

    assert code == -9
    assert ".replaced.toolkit-installer" in there
    assert done.returncode == 0, done.stderr
    assert site.tree() == before


def test_while_what_was_set_aside_is_removed(site: Site) -> None:
    assert site.call("install").returncode == 0
    (site.root / TOOLKIT).unlink()  # NVIDIA's installer makes its own anew
    shutil.copytree(site.root / HOME / "replaced", site.root / TOOLKIT)

    code = killed(site, "uninstall", "unlink", "nvidia-container-runtime")
    there = [path.name for path in (site.root / HOME).iterdir()]
    done = site.call("uninstall")

    assert code == -9
    assert "replaced.toolkit-installer" in there
    assert done.returncode == 0, done.stderr
    assert not (site.root / HOME).exists()
