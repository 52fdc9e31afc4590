"""What a ``run`` that waits has seen at its last look, and asking it for one."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.support.site import PROJECT, STATE, Site

PATIENCE_S = 60


def until(done: Callable[[], object], told: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


def look(site: Site) -> Any:
    return json.loads((site.root / STATE).read_text())


def asked(site: Site, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "installer", "reconcile", "--host-root", str(site.root), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT, timeout=60)
