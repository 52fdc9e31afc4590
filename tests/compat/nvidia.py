"""A node for NVIDIA's command line: configs below a root, the program as a process, and what then stands there."""

import json
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import preloaded
from tests.support.entry import NVIDIAS, PROJECT
from tests.support.stand_in import stand_in_payload
from tests.support.tree import tree

CONFIG = {
    "docker": "etc/docker/daemon.json",
    "containerd": "etc/containerd/config.toml",
    "crio": "etc/crio/crio.conf",
}
DROP_IN = {
    "containerd": "etc/containerd/conf.d/99-nvidia.toml",
    "crio": "etc/crio/crio.conf.d/99-nvidia.toml",
}
TOOLKIT = "/usr/local/nvidia/toolkit"
V2 = 'plugins."io.containerd.grpc.v1.cri".containerd'
V3 = "plugins.'io.containerd.cri.v1.runtime'.containerd"


def call(words: Sequence[str], variables: dict[str, str]) -> int:
    """Run the program with these variables alone; return its exit code. What it prints is what the test prints."""
    environment = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT), **variables}
    done = preloaded.run([sys.executable, *words], environment)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


class Nvidia:
    """One node with one engine."""

    def __init__(self, directory: Path, engine: str) -> None:
        self.root, self.source, self.engine = directory / "node", directory / "artifacts", engine
        self.config = self.root / CONFIG[engine]
        self.drop_in = self.root / DROP_IN.get(engine, "nothing")
        self.config.parent.mkdir(parents=True)
        stand_in_payload(self.source)

    def install(self, *arguments: str, **variables: str) -> int:
        """Say ``nvidia-toolkit --no-daemon``; return the exit code."""
        environment = {
            "RUNTIME": self.engine,
            "HOST_ROOT_MOUNT": str(self.root),
            "TOOLKIT_SOURCE_ROOT": str(self.source),
            "RUNTIME_RESTART_MODE": "none",
            "NO_DAEMON": "true",
            **variables,
        }
        return call((*NVIDIAS, *arguments), environment)

    def uninstall(self, *more: str) -> int:
        where = ("--host-root", str(self.root), "--restart-mode", "none")
        return call(("-m", "installer", "uninstall", *where, *more), {})

    def tree(self) -> dict[str, str]:
        """Return what each path of the node is."""
        return tree(self.root)

    def runtimes(self) -> dict[str, Any]:
        """Return the runtimes that the engine is told of, in its config or in our drop-in."""
        path = self.drop_in if self.drop_in.is_file() else self.config
        if self.engine == "docker":
            return dict(json.loads(path.read_text())["runtimes"])
        return dict(self.table(path)["runtimes"])

    def table(self, path: Path) -> dict[str, Any]:
        """Return the table of a config that holds the runtimes and the default."""
        tree = tomllib.loads(path.read_text())
        if self.engine == "crio":
            return dict(tree["crio"]["runtime"])
        plugins = tree["plugins"]
        names = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
        return dict(next(plugins[name]["containerd"] for name in names if name in plugins))

    def toolkit_config(self) -> dict[str, Any]:
        """Return what the toolkit's own config.toml says."""
        path = self.root / f"{TOOLKIT[1:]}/.config/nvidia-container-runtime/config.toml"
        return tomllib.loads(path.read_text())
