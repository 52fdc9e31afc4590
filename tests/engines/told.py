"""What engines, the installer and its doctor say, and what a node's files are, to the byte."""

import json
from typing import Any

from tests.engines.nodes import Node
from tests.support.tree import USUAL, Aspect, tree

Checks = dict[str, dict[str, Any]]
# What the installer may touch, and the directories above it.
WATCHED = ("etc", "usr/local", "run/nvidia", "opt", "usr/share/containers")


def served(node: Node) -> tuple[set[str], str]:
    """Return the runtimes and the default that the running engine names."""
    if node.engine == "docker":
        line = "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}|{{.DefaultRuntime}}"
        names, default = node.run(["docker", "info", "--format", line]).stdout.strip().split("|")
        # 20.10 lists its containerd shims at its start only, and no more after its first reload.
        return {name for name in names.split() if not name.startswith("io.containerd.")}, default
    containerd = node.cri.status().config["containerd"]
    return set(containerd["runtimes"]), containerd["defaultRuntimeName"]


def sentence(stderr: str) -> str:
    """Return the error in which a run of the installer ended; other problems follow it."""
    said = next(each for line in stderr.splitlines() if (each := json.loads(line))["event"] == "failed")
    return f"{said['problem']}; {said['remedy']}"


def starts(node: Node, unit: str = "containerd") -> int:
    """Return how often systemd has started a unit since boot."""
    node.run(["journalctl", "--sync"])
    lines = node.journal(unit).splitlines()
    return len([line for line in lines if line.startswith("Started ")])


def snapshot(node: Node, *, times: bool = False) -> dict[str, str]:
    """Return what each path of a node is: mode, owner and content; with ``times`` inode and mtime too."""
    aspects = USUAL | Aspect.OWNER | (Aspect.TIMES if times else Aspect(0))
    found = tree(node.root, aspects, tops=WATCHED)
    # What an install leaves for the next one tells of the boot, of mounts and of the engine's process, too.
    passing = ("/dist-packages", "/.config/unchanged")
    return {f"/{path}": what for path, what in found.items() if not any(each in path for each in passing)}


def but_the_ledger(files: dict[str, str]) -> dict[str, str]:
    """Return files without the ledger, which remembers why an undo was refused."""
    return {path: what for path, what in files.items() if not path.endswith("/.toolkit-installer/ledger")}


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
