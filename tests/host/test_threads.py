"""Work beside other work where memory has an end: real processes, at each limit around that of one thread."""

import subprocess
import sys

import pytest

from tests.support.site import PROJECT

STACK = 1 << 20
# What a thread of Python needs besides its stack comes in a few pages: from none of it to all.
ROOMS = range(0, 1 << 16, 1 << 12)
WORKS = """
import resource, sys, _thread
from pathlib import Path
from installer.host.limits import do_each
limit, stack, room = getattr(resource, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
_thread.stack_size(stack)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
used = int(status["VmSize" if limit == resource.RLIMIT_AS else "VmData"].split()[0]) << 10
resource.setrlimit(limit, (used + stack + room,) * 2)
print(do_each(lambda item: 2 * item, range(3)))
"""


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_work_ends_where_memory_ends_within_that_of_a_thread(limit: str) -> None:
    for room in ROOMS:
        done = subprocess.run(
            [sys.executable, "-c", WORKS, limit, str(STACK), str(room)],
            capture_output=True,
            text=True,
            check=False,
            cwd=PROJECT,
            timeout=20,
        )

        assert (done.returncode, done.stdout) == (0, "[0, 2, 4]\n"), (room, done.stderr)
