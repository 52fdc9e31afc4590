"""The real program as a container's: with a file for its last sentence, as the kubelet mounts one."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.site import PROJECT, Site

# Only /dev is another one: the rest is the program's own way in.
PROGRAM = """
import sys
from pathlib import Path
from installer.host import events
events.TERMINATION_LOG = Path(sys.argv.pop(1))
{entry}
"""
OURS = PROGRAM.format(entry="from installer.__main__ import main; main()")
NVIDIAS = PROGRAM.format(entry="from installer.cli.nvidia import main; main()")


def call(
    log: Path, site: Site, verb: str, *more: str, entry: str = OURS
) -> "subprocess.CompletedProcess[str]":
    """Run a verb with ``log`` as the termination log."""
    words = site.command(verb, *more)[3:] if verb else [*more]
    return subprocess.run(
        [sys.executable, "-c", entry, str(log), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.defpath, "PYTHONPATH": str(PROJECT)},
    )
