"""Which boot this is, and which process: what tells a fresh claim from one left by a reboot."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path


def boot_id() -> str:
    """Return the id of this boot (random(4)); it changes with each one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def own_pid() -> int:
    """Return the pid of this process, in its own pid namespace."""
    return os.getpid()


def runs(pid: int) -> bool:
    """Tell whether a process has ``pid``, in our own pid namespace."""
    return Path(f"/proc/{pid}").exists()


def open_standard_streams() -> None:
    """Open those of the three that are closed: a log line would go to the next file of ours."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - no name to give it
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))
    # A path may have any bytes: what the terminal's encoding has no letters for is shown by its number.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
