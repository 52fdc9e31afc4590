"""What doctor says on a node."""

import json
from typing import Any

from tests.engines.nodes import Node

Checks = dict[str, dict[str, Any]]


def doctor(node: Node) -> tuple[int, Checks]:
    done = node.installer("doctor", "--json")
    assert done.stdout, done.stderr
    return done.returncode, {each["name"]: each for each in json.loads(done.stdout)["checks"]}


def bad(checks: Checks) -> dict[str, str]:
    return {name: each["found"] for name, each in checks.items() if each["level"] == "bad"}


def warned(checks: Checks) -> dict[str, str]:
    """Return the warnings but those of known holes: Debian mends its runc and containerd without a new version."""
    warnings = {name: each["found"] for name, each in checks.items() if each["level"] == "warn"}
    return {name: found for name, found in warnings.items() if not name.startswith("holes-")}
