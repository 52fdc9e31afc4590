"""What is printed into a pipe that nobody reads, or that nobody reads any more, holds nobody."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from tests.support.entry import NVIDIAS
from tests.support.site import PROJECT, Site
from tests.support.waiting import full_pipe, until_it_sleeps

PYTHON = [sys.executable, "-m"]
OURS, COMPAT = [*PYTHON, "installer"], [sys.executable, *NVIDIAS]
USAGE = [
    pytest.param([*OURS, "install", "--nonsense"], 2, id="ours"),
    pytest.param([*OURS, "install", "--host-root", "/nonexistent", "--log-format", "json"], 1, id="an error"),
    pytest.param([*COMPAT, "--nonsense"], 1, id="NVIDIA's words"),
]


def _ends(child: "subprocess.Popen[bytes]", within_s: float) -> int | None:
    try:
        return child.wait(within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        return None


@pytest.mark.parametrize(("command", "code"), USAGE)
def test_an_error_ends_though_nobody_reads_it(command: list[str], code: int) -> None:
    with full_pipe() as full, subprocess.Popen(command, stderr=full, stdout=full, cwd=PROJECT) as child:
        assert _ends(child, 20) == code


SHOWN: list[object] = [
    pytest.param(lambda site: site.command("plan"), 10, id="plan"),
    pytest.param(lambda site: [*OURS, "status", "--host-root", str(site.root)], 3, id="status"),
    pytest.param(lambda _: [*COMPAT, "--help"], 0, id="help in NVIDIA's words"),
]


@pytest.mark.parametrize(("command", "code"), SHOWN)
def test_what_is_shown_waits_for_its_reader_and_obeys_a_stop(
    site: Site, command: Callable[[Site], list[str]], code: int
) -> None:
    quiet = subprocess.DEVNULL
    with (
        full_pipe() as full,
        subprocess.Popen(command(site), stdout=full, stderr=quiet, cwd=PROJECT) as child,
    ):
        until_it_sleeps(child.pid)  # it writes

        still_there = child.poll() is None
        child.send_signal(signal.SIGTERM)

        assert still_there
        # argparse ends the program by itself, with the code of what it was asked for.
        assert _ends(child, 20) in {1, code}


@pytest.mark.parametrize(("command", "code"), SHOWN)
def test_what_nobody_can_read_is_no_traceback_and_what_finds_no_room_no_success(
    site: Site, command: Callable[[Site], list[str]], code: int
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    gone = _run(command(site), stdout=writer)
    os.close(writer)
    with Path("/dev/full").open("w") as file:
        full = _run(command(site), stdout=file)
    closed = _run(["sh", "-c", 'exec "$@" >&-', "sh", *command(site)], stdout=None)

    assert (gone.returncode, gone.stderr) == (code, "")
    assert full.returncode == closed.returncode == 1 != code
    assert full.stderr == (
        "toolkit-installer: cannot write to standard output (no space left on device); "
        "give it a file or a reader that takes it, then run again\n"
    )
    assert "cannot write to standard output (it is closed)" in closed.stderr


def test_an_install_shows_nothing_and_needs_no_stream_at_all(clean: Site) -> None:
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]

    done = [_run([*closing, *clean.command(verb)], stdout=None) for verb in ("install", "uninstall")]

    assert [each.returncode for each in done] == [0, 0]


def _run(command: list[str], stdout: TextIO | int | None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, cwd=PROJECT, timeout=60
    )
