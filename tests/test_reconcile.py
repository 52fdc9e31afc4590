"""reconcile, started by kubectl exec as a rule, ends when it is told to: an engine's unit stops with its execs."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.site import PROJECT, Site
from tests.support.waiting import stop, until, until_it_sleeps


def test_a_check_that_cannot_even_begin_answers_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    command = [sys.executable, "-m", "installer", "reconcile", "--host-root", str(site.root)]
    with site.running() as child:
        until_it_sleeps(child.pid)
        (site.root / "usr/local/nvidia").chmod(0o777)
        done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=60, check=False)
        (site.root / "usr/local/nvidia").chmod(0o755)
        child.kill()
        child.wait()

    assert done.returncode == 1
    assert "follow the link /usr/local/nvidia/toolkit (a user other than root could have" in done.stderr


def test_a_reconcile_that_waits_for_its_answer_ends_when_it_is_told_to(tmp_path: Path) -> None:
    site = Site(tmp_path)
    command = [sys.executable, "-m", "installer", "reconcile", "--host-root", str(site.root)]
    with site.running() as child:
        until_it_sleeps(child.pid)
        stop(child.pid)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=PROJECT) as asking:
            pending = re.compile(r"^ShdPnd:\s*0*1$", re.MULTILINE)
            until(lambda: bool(pending.search(Path(f"/proc/{child.pid}/status").read_text())))
            asking.terminate()
            try:
                code = asking.wait(20)
            finally:
                child.kill()
                child.wait()
            assert asking.stderr is not None
            said = asking.stderr.read()

    assert code == 1
    assert "a signal asked to stop" in said
