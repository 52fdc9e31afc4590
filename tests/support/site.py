"""A host below a directory, a toolkit for it, and the real program as a child process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import preloaded
from tests.support.stand_in import CONFIGS, stand_in_payload
from tests.support.tree import USUAL, Aspect, tree

PROJECT = Path(__file__).parents[2]
ENGINES = ("--runtime", "docker", "--runtime", "containerd", "--runtime", "crio", "--restart-mode", "none")
DAEMON_JSON = "etc/docker/daemon.json"
LEDGER = "usr/local/nvidia/.toolkit-installer/ledger"
PIDFILE = "run/nvidia/toolkit/toolkit.pid"
STATE = "run/nvidia/toolkit/toolkit.pid.state"


class Site:
    """A host below ``root`` and the payload for it."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "node"
        self.source = directory / "artifacts"
        for name, text in CONFIGS.items():
            (self.root / name).parent.mkdir(parents=True)
            (self.root / name).write_text(text)
        stand_in_payload(self.source)

    def command(self, verb: str, *more: str) -> list[str]:
        where = ["--host-root", str(self.root), "--toolkit-source", str(self.source)]
        return [sys.executable, "-m", "installer", verb, *where, *ENGINES, *more]

    def call(self, verb: str, *more: str, env: dict[str, str] | None = None) -> preloaded.Done:
        return preloaded.run(self.command(verb, *more), preloaded.ENVIRONMENT | (env or {}))

    def status(self, *more: str) -> preloaded.Done:
        command = [sys.executable, "-m", "installer", "status", "--host-root", str(self.root), *more]
        return preloaded.run(command)

    @contextmanager
    def running(self, *more: str) -> Iterator["subprocess.Popen[str]"]:
        """Start ``run`` and yield it once it waits."""
        command, environment = self.command("run", *more), preloaded.ENVIRONMENT
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as child:
            try:
                assert child.stderr is not None
                waits(child)
                yield child
            finally:
                child.kill()

    def tree(self, *, times: bool = False) -> dict[str, str]:
        """Return what each path is; with ``times`` also its inode and the time of its last change."""
        return tree(self.root, USUAL | Aspect.TIMES if times else USUAL)


def waits(child: "subprocess.Popen[str]") -> None:
    assert child.stderr is not None
    assert any("waiting for a signal" in line for line in child.stderr), child.wait(10)


def sentence(done: preloaded.Done) -> str:
    said = json.loads(done.stderr.splitlines()[-1])
    return f"{said['problem']}; {said['remedy']}"
