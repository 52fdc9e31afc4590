"""What engines and the installer say of themselves."""

import json

from tests.engines.nodes import Node


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
