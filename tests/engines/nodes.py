"""A node is a Debian under systemd in namespaces of its own; killing one process ends all of it."""

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM, Signals

from tests.engines.configs import CONTAINERD, DOCKER, base_configs
from tests.engines.cri import Cri
from tests.engines.images import ARCHIVE
from tests.engines.payload import ARTIFACTS, MARK, STAND_IN, mark_payload
from tests.engines.roots import Roots
from tests.engines.spawn import end, make_cgroups, remove_cgroups, spawn
from tests.engines.versions import EngineSet
from tests.support.waiting import HANGS_S, PATIENCE_S, until

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TOOLKIT_INSTALLER_LOG_FORMAT": "json",  # for verbs that would answer a person
}
PYTHON = "/usr/bin/python3"
SOURCE = ("--toolkit-source", ARTIFACTS)
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
CONSOLE = "console.log"
# As the packages' own scripts would enable them.
ENABLED = {"containerd.service": "multi-user", "docker.service": "multi-user", "docker.socket": "sockets"}


class Running:
    """A started process: ``pid`` is what the node calls it, ``outer_pid`` what the tests do."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._nsenter = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.outer_pid = self._child()
        status = Path(f"/proc/{self.outer_pid}/status").read_text()
        self.pid = int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])

    def _child(self, timeout_s: float = PATIENCE_S) -> int:
        """Return the one child of nsenter, once it no longer is nsenter itself."""
        import psutil

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            children = psutil.Process(self._nsenter.pid).children() if self._nsenter.poll() is None else []
            if children and children[0].name() not in {"nsenter", "env"}:
                return int(children[0].pid)
            time.sleep(0.005)
        raise RuntimeError(f"nothing runs in the node: {self.log}")

    @property
    def log(self) -> str:
        """Return what it wrote so far, to either output."""
        return self._log.read_text()

    @property
    def running(self) -> bool:
        return self._nsenter.poll() is None

    def signal(self, number: Signals) -> None:
        """Send a signal to the process itself; nothing happens when it has just ended."""
        with suppress(ProcessLookupError):
            os.kill(self.outer_pid, number)
        if number in {SIGCONT, SIGKILL}:  # nsenter stops itself where its child is stopped
            self._nsenter.send_signal(SIGCONT)

    def terminate(self) -> None:
        self.signal(SIGTERM)

    def kill(self) -> None:
        self.signal(SIGKILL)

    def wait(self, timeout_s: float = HANGS_S) -> int:
        """Return the exit code; minus the number of the signal that ended it."""
        return self._nsenter.wait(timeout_s)

    def wait_for(self, text: str) -> None:
        """Return as soon as the log holds ``text``."""
        until(lambda: text in self.log or not self.running, lambda: f"never said {text!r}: {self.log}")
        assert text in self.log, f"ended without {text!r}: {self.log}"


class Node:
    """A booted node; its engines are as its configs were when they were started."""

    program: tuple[str, ...] = (PYTHON, "-m", "installer")

    def __init__(
        self, name: str, engines: EngineSet, process: subprocess.Popen[bytes], scratch: Path
    ) -> None:
        self.name = name
        self.engines = engines
        self._process = process
        self._scratch = scratch
        self.leader = self._booted()

    @property
    def root(self) -> Path:
        """Return the node's root as seen from here; mind absolute symlinks, they lead out of it."""
        return Path(f"/proc/{self.leader}/root")

    @property
    def engine(self) -> str:
        """Return ``docker`` or ``containerd``."""
        return self.engines.name

    @property
    def unit(self) -> str:
        return f"{self.engine}.service"

    @property
    def config(self) -> str:
        return DOCKER if self.engine == "docker" else CONTAINERD

    @property
    def containerd_version(self) -> str:
        return self.engines.containerd

    @property
    def docker_version(self) -> str | None:
        return self.engines.docker

    def _command(self, args: Sequence[str], env: Mapping[str, str] | None) -> list[str]:
        variables = [f"{name}={value}" for name, value in (ENVIRONMENT | dict(env or {})).items()]
        return ["nsenter", "-t", str(self.leader), "-a", "--", "/usr/bin/env", "-i", *variables, *args]

    def run(
        self,
        args: Sequence[str],
        *,
        check: bool = True,
        timeout_s: float = HANGS_S,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node, in ``/``, with a small environment and ``env``."""
        command = self._command(args, env)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(args)} gave {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def wait_for(self, text: str, args: Sequence[str]) -> None:
        """Return as soon as a command in the node says ``text``."""
        until(lambda: text in self.run(args, check=False).stdout, lambda: f"{args} never said {text!r}")

    def installer(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        check: bool = False,
        timeout_s: float = HANGS_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run the installer in the node, on the node's own Python."""
        return self.run([*self.program, *args], env=env, check=check, timeout_s=timeout_s)

    def start_installer(self, *args: str, env: Mapping[str, str] | None = None) -> Running:
        """Start the installer in the node and return when it is a process there."""
        return self.start([*self.program, *args], env=env)

    def start_run(self, *args: str) -> Running:
        """Start ``run`` in the node and return once it waits."""
        process = self.start_installer("run", *args)
        process.wait_for("waiting for a signal")
        return process

    def is_ready(self) -> bool:
        """Tell what a kubelet is told of ``run``."""
        return self.installer("status", "--ready").returncode == 0

    def start(self, args: Sequence[str], *, env: Mapping[str, str] | None = None) -> Running:
        """Start a command in the node; what still runs at the end dies with the node."""
        return Running(self._command(args, env), self._scratch / f"{uuid.uuid4().hex[:8]}.log")

    def path(self, path: str) -> Path:
        """Return where a path of the node is from here."""
        return self.root / path.lstrip("/")

    def write(self, path: str, text: str) -> None:
        """Write a file of the node, its directory included."""
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path: str) -> str:
        return self.path(path).read_text()

    def restart(self, unit: str) -> None:
        """Restart a unit; tests do so more often than a unit's start limit allows."""
        self.run(["systemctl", "reset-failed", unit], check=False)
        self.run(["systemctl", "restart", unit])

    def restart_engine(self) -> None:
        """Let the engine read its units and configs, and wait until it serves."""
        self.run(["systemctl", "daemon-reload"])
        self.restart(self.unit)
        if self.engine == "containerd":
            self.cri.wait()

    def show(self, unit: str, name: str) -> str:
        """Return one of the unit's properties, such as ``ActiveState`` or ``NRestarts``."""
        return self.run(["systemctl", "show", "-P", name, unit]).stdout.strip()

    def pid_of(self, unit: str = "") -> int:
        """Return the main process of a unit, the engine's if none is named, as the node numbers it, or 0."""
        return int(self.show(unit or self.unit, "MainPID"))

    def has(self, path: str) -> bool:
        return self.path(path).exists()

    def journal(self, unit: str) -> str:
        """Return what the unit logged since boot."""
        return self.run(["journalctl", "--no-pager", "--output=cat", "--unit", unit]).stdout

    def shut_down_and_boot(self) -> None:
        """Reboot in order: every unit is stopped, every process told to."""
        self._reboot("systemctl", "reboot")

    def reboot(self) -> None:
        """Cut the power and boot again: /run is empty, pids and boot_id are new, disks are as they were."""
        self._reboot("systemctl", "reboot", "--force", "--force")

    def _reboot(self, *command: str) -> None:
        import psutil

        before = psutil.Process(self.leader)
        self.run(command, check=False)
        before.wait(timeout=HANGS_S)
        self.leader = self._booted()

    def _booted(self) -> int:
        """Return the pid of the node's systemd once all it has to start has started."""
        import psutil

        deadline = time.monotonic() + HANGS_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(psutil.NoSuchProcess, StopIteration):
                below = psutil.Process(self._process.pid).children(recursive=True)
                self.leader = next(child.pid for child in below if child.name() == "systemd")
                said = self.run(["systemctl", "is-system-running"], check=False).stdout.strip()
                if said in {"running", "degraded"}:
                    return self.leader
            time.sleep(0.05)
        raise RuntimeError(f"the node did not boot: {(self._scratch / CONSOLE).read_text()}")

    def start_engines(self) -> None:
        """Start what this kind of node runs, load the test image and wait until it can be used."""
        units = [unit for unit in ENABLED if self.engines.docker or unit.startswith("containerd")]
        for unit in units:
            wants = self.root / f"etc/systemd/system/{ENABLED[unit]}.target.wants"
            wants.mkdir(exist_ok=True)
            (wants / unit).symlink_to(f"/lib/systemd/system/{unit}")
        self.run(["systemctl", "start", *units])
        if self.engines.docker:
            self.run(["docker", "load", "--quiet", "--input", ARCHIVE])
        else:
            self.run(["ctr", "--namespace", "k8s.io", "images", "import", ARCHIVE])
            self.cri.wait()

    @property
    def cri(self) -> Cri:
        return Cri(self.root / "run/containerd/containerd.sock")

    def marks(self) -> list[str]:
        """Return the commands that reached a stand-in of the payload: its name, then its arguments."""
        return self.read(MARK).splitlines() if self.has(MARK) else []

    def forget_marks(self) -> None:
        self.path(MARK).unlink(missing_ok=True)

    def add_payload(self, path: str, version: str) -> None:
        """Put another version of the payload at ``path`` of the node."""
        mark_payload(self.path(path), self.path(STAND_IN), version)

    def load_fake_nvidia_module(self) -> None:
        """Make the driver look loaded, as it does from boot on."""
        (self.root / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)

    def unload_fake_nvidia_module(self) -> None:
        with suppress(FileNotFoundError):
            (self.root / "sys/module/nvidia").rmdir()


@contextmanager
def boot(
    roots: Roots, engines: EngineSet, *, start: bool = True, binds: Sequence[str] = ()
) -> Iterator[Node]:
    """Boot a node, its usual configs in place; without ``start`` its engines wait for ``start_engines``.

    ``binds`` are more words for nspawn, such as ``--bind=/dev/nvidia0``.
    """
    name = f"node{os.getpid()}-{uuid.uuid4().hex[:6]}"
    scratch = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    own_cgroups: list[Path] = []
    process: subprocess.Popen[bytes] | None = None
    try:
        own_cgroups += make_cgroups(name)
        process = spawn(roots, engines.suite, name, own_cgroups, scratch / CONSOLE, binds)
        node = Node(name, engines, process, scratch)
        for path, text in base_configs(engines).items():
            node.write(path, text)
        if start:
            node.start_engines()
        yield node
    finally:
        if process is not None:
            end(process)
        remove_cgroups(own_cgroups)
        shutil.rmtree(scratch)
