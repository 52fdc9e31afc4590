"""``make test-gpu`` where there is no GPU: what it says, and how it judges what it was told."""

import subprocess
import sys
from pathlib import Path

from tests.support.site import PROJECT


def test_on_a_machine_without_a_gpu_it_says_in_one_line_what_is_lacking_and_fails(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "TOOLKIT_SOURCE": str(tmp_path)}
    command = [sys.executable, "-m", "tests.gpu"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT, env=environment)

    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("test-gpu cannot run on this machine, which lacks ")
    assert "runc" in line
    assert f"TOOLKIT_SOURCE={tmp_path} (no nvidia-ctk nvidia-cdi-hook nvidia-container-runtime)" in line
