"""What a ``run`` that waits has seen at its last look, and asking it for one."""

import json
import sys
from typing import Any

from tests.support import preloaded
from tests.support.site import STATE, Site


def look(site: Site) -> Any:
    return json.loads((site.root / STATE).read_text())


def found_problem(site: Site, code: str) -> bool:
    """Tell whether the last look has found a problem of this code."""
    problem = look(site)["problem"]
    return problem is not None and problem["code"] == code


def asked(site: Site, *more: str) -> preloaded.Done:
    command = [sys.executable, "-m", "installer", "reconcile", "--host-root", str(site.root), *more]
    return preloaded.run(command)
