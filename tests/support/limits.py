"""A child that has the memory of the pod, and little processor time: a cost that multiplies ends it."""

import resource
import subprocess
import sys
from collections.abc import Sequence

from tests.support.site import PROJECT

POD_BYTES = 128 << 20  # memory limit of the manifest
CPU_S = 60  # of a second or two
HANGS_S = 3600  # on a machine with other work; processor time is what counts


def limited(
    command: Sequence[str], *, memory: int = POD_BYTES, cpu_s: int = CPU_S
) -> "subprocess.CompletedProcess[str]":
    """Run a command that may have no more address space and processor time than that."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))

    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANGS_S, check=False, cwd=PROJECT, preexec_fn=limit
    )


def limited_script(text: str, *words: object) -> str:
    """Run a script of Python within the limits of the pod; return what it printed."""
    done = limited([sys.executable, "-c", text, *map(str, words)])
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout
