"""Runs on a node: print how long two dry runs of containerd's own program take, in ms.

An install asks the program twice: what is in force without us, and what is in force with us.
"""

import time
from pathlib import PurePosixPath

from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.dry_run import DryRuns
from installer.host.files import Host
from installer.model.engine import EngineState

CONFIG = PurePosixPath("/etc/containerd/config.toml")
EXE = PurePosixPath("/usr/bin/containerd")


def main() -> None:
    """Time both dry runs."""
    host = Host.under(PurePosixPath("/"))
    engine = replace(EngineState.usual(ENGINES["containerd"]), drop_in=None, files=(CONFIG,), exe=EXE)
    content = host.read(CONFIG)
    now = {CONFIG: content}
    dry_run = DryRuns(host, now)
    began = time.perf_counter()
    before = dry_run(engine, now)
    after = dry_run(engine, {CONFIG: None})
    took_s = time.perf_counter() - began
    assert before.rest_digest
    assert after.rest_digest
    print(took_s * 1000)


if __name__ == "__main__":
    main()
