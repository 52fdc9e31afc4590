"""A host below a directory, a toolkit for it, and the real program as a child process."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import preloaded
from tests.support.stand_in import CONFIGS, stand_in_payload
from tests.support.tree import USUAL, Aspect, tree
from tests.support.waiting import kill

PROJECT = Path(__file__).parents[2]
ENGINES = ("--runtime", "docker", "--runtime", "containerd", "--runtime", "crio", "--restart-mode", "none")
DAEMON_JSON = "etc/docker/daemon.json"
CONTAINERD = "etc/containerd/config.toml"
CRIO = "etc/crio/crio.conf.d/99-nvidia.toml"
TOOLKIT = "usr/local/nvidia/toolkit"
HOME = "usr/local/nvidia/.toolkit-installer"
LEDGER = f"{HOME}/ledger"
CONFIG_TOML = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"
PIDFILE = "run/nvidia/toolkit/toolkit.pid"
STATE = "run/nvidia/toolkit/toolkit.pid.state"
READY = "run/nvidia/toolkit/ready"


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

    def install(self, *more: str) -> preloaded.Done:
        """Install, and see that it succeeds."""
        done = self.call("install", *more)
        assert done.returncode == 0, done.stderr
        return done

    def uninstall(self, *more: str, code: int = 0) -> preloaded.Done:
        """Uninstall, and see that it ends with ``code``."""
        done = self.call("uninstall", *more)
        assert done.returncode == code, done.stderr
        return done

    def refuses(self, verb: str, *more: str, code: int = 1) -> str:
        """Return the sentence by which a verb is refused; the node is as it was."""
        before = self.tree()
        done = self.call(verb, *more)
        assert done.returncode == code, done.stderr
        assert self.tree() == before
        return sentence(done)

    def status(self, *more: str) -> preloaded.Done:
        command = [sys.executable, "-m", "installer", "status", "--host-root", str(self.root), *more]
        return preloaded.run(command)

    @contextmanager
    def running(self, *more: str, env: dict[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
        """Start ``run`` and yield it once it waits; it is killed if it has not ended by then."""
        command, environment = self.command("run", *more), preloaded.ENVIRONMENT | (env or {})
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as child:
            try:
                assert child.stderr is not None
                waits(child)
                yield child
            finally:
                if child.poll() is None:
                    kill(child.pid)

    def read(self, path: str) -> str:
        """Return the text of a file below the root, "" where there is none."""
        return (self.root / path).read_text() if (self.root / path).exists() else ""

    def write(self, path: str, text: str = "") -> Path:
        """Write a file below the root, and make what it stands in."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        return self.root / path

    def rewrite(self, path: str, change: Callable[[Any], object]) -> None:
        """Change what a file of JSON says."""
        said = json.loads(self.read(path))
        change(said)
        self.write(path, json.dumps(said))

    def publish_ready(self, pid: int, boot_id: str = "") -> None:
        """Publish readiness, as a run of this pid does that has proven its engines."""
        boot_id = boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        said = {"boot_id": boot_id, "pid": pid, "plan": "", "engines": [], "time": ""}
        self.write(READY, json.dumps(said))

    def copy_of(self, other: "Site") -> "Site":
        """Become a copy of another node, which has the same payload."""
        shutil.rmtree(self.root)
        shutil.copytree(other.root, self.root, symlinks=True)
        return self

    def tree(self, *, times: bool = False) -> dict[str, str]:
        """Return what each path is; with ``times`` also its inode and the time of its last change."""
        return tree(self.root, USUAL | Aspect.TIMES if times else USUAL)


def waits(child: "subprocess.Popen[str]") -> None:
    assert child.stderr is not None
    assert any("waiting for a signal" in line for line in child.stderr), child.wait(10)


def ended(child: "subprocess.Popen[str]", number: int = signal.SIGTERM, code: int = 0) -> str:
    """Signal a run, see that it ends with ``code``, and return what it has said since it was read last."""
    assert child.stderr is not None
    child.send_signal(number)
    said = child.stderr.read()
    assert child.wait(60) == code, said
    return said


def sentence(done: preloaded.Done) -> str:
    said = json.loads(done.stderr.splitlines()[-1])
    return f"{said['problem']}; {said['remedy']}"
