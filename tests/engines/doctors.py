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
