"""A node for NVIDIA's command line: configs below a root, the program as a process, and what then stands there."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import preloaded
from tests.support.entry import NVIDIAS
from tests.support.stand_in import stand_in_payload
from tests.support.tree import tree
from tests.support.waiting import HANGS_S

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
# The runtimes, each with how its program ends.
MODES = {"nvidia": "", "nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}


class Nvidia:
    """One node with one engine and its config; ``events`` are what the last call has logged."""

    def __init__(self, directory: Path, engine: str, config: str | None = None) -> None:
        self.root, self.source, self.engine = directory / "node", directory / "artifacts", engine
        self.config = self.root / CONFIG[engine]
        self.drop_in = self.root / DROP_IN.get(engine, "nothing")
        self.config.parent.mkdir(parents=True)
        if config is not None:
            self.config.write_text(config, newline="")
        self.events: list[dict[str, Any]] = []
        stand_in_payload(self.source)

    def _call(self, words: Sequence[str], variables: Mapping[str, str]) -> int:
        done = preloaded.run([sys.executable, *words], {**preloaded.ENVIRONMENT, **variables})
        sys.stderr.write(done.stderr)
        self.events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        return done.returncode

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {
            "RUNTIME": self.engine,
            "HOST_ROOT_MOUNT": str(self.root),
            "TOOLKIT_SOURCE_ROOT": str(self.source),
            "RUNTIME_RESTART_MODE": "none",
            **variables,
        }

    def install(self, *arguments: str, **variables: str) -> int:
        """Say ``nvidia-toolkit --no-daemon``; return the exit code."""
        return self._call((*NVIDIAS, *arguments), self._environment({"NO_DAEMON": "true", **variables}))

    @contextmanager
    def running(self, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Start ``nvidia-toolkit``, which installs and waits; stop it at the end."""
        environment = {**preloaded.ENVIRONMENT, **self._environment(variables)}
        process = subprocess.Popen(
            [sys.executable, *NVIDIAS], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=HANGS_S)

    def uninstall(self, *more: str) -> int:
        where = ("--host-root", str(self.root), "--restart-mode", "none")
        return self._call(("-m", "installer", "uninstall", *where, *more), {})

    @contextmanager
    def installed(self, *arguments: str, **variables: str) -> Iterator[None]:
        """Install; at the end see that an uninstall leaves every byte as it was."""
        before = self.tree()
        assert self.install(*arguments, **variables) == 0
        yield
        assert self.uninstall() == 0
        assert self.tree() == before

    def refused(self, **variables: str) -> str:
        """See that an install is refused and changes nothing; return its problem."""
        before = self.tree()
        assert self.install(**variables) == 1
        assert self.tree() == before
        assert self.events[-1]["event"] == "failed"
        return str(self.events[-1]["problem"])

    def put(self, files: Mapping[str, str]) -> None:
        """Write files by their path below the root."""
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text, newline="")

    def tree(self) -> dict[str, str]:
        """Return what each path of the node is."""
        return tree(self.root)

    def told(self) -> dict[str, Any]:
        """Return the table with the runtimes and the default that the engine reads: of our drop-in, or its config."""
        path = self.drop_in if self.drop_in.is_file() else self.config
        if self.engine == "docker":
            return dict(json.loads(path.read_text()))
        tree = tomllib.loads(path.read_text())
        if self.engine == "crio":
            return dict(tree["crio"]["runtime"])
        plugins = tree["plugins"]
        names = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
        return dict(next(plugins[name]["containerd"] for name in names if name in plugins))

    def runtimes(self) -> dict[str, Any]:
        """Return the runtimes that the engine is told of."""
        return dict(self.told()["runtimes"])

    def default(self) -> object:
        """Return the default runtime that the engine is told of, None where it is told of none."""
        keys = ("default-runtime", "default_runtime_name", "default_runtime")
        return next((self.told()[key] for key in keys if key in self.told()), None)

    def toolkit_config(self) -> dict[str, Any]:
        """Return what the toolkit's own config.toml says."""
        path = self.root / f"{TOOLKIT[1:]}/.config/nvidia-container-runtime/config.toml"
        return tomllib.loads(path.read_text())

    def low_level(self) -> list[str]:
        """Return the runtimes that the toolkit starts."""
        return list(self.toolkit_config()["nvidia-container-runtime"]["runtimes"])
