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

from tests.engines import cgroups
from tests.engines.cache import PROJECT
from tests.engines.configs import base_configs
from tests.engines.images import ARCHIVE
from tests.engines.payload import MARK, STAND_IN, mark_payload
from tests.engines.roots import Roots, with_own_loader
from tests.engines.running import Running
from tests.engines.versions import EngineSet

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
PYTHON = "/usr/bin/python3"
BOOT_S = 30
# The wrapper enters the node's cgroups and hides the machine's own systemd, then becomes nspawn.
ENTER = """\
for cgroup in $CGROUPS; do echo 0 > "$cgroup/cgroup.procs" || exit 1; done
mount --make-rprivate / && mount -t tmpfs tmpfs /run && exec "$@"
"""


class Node:
    """A booted node; its engines are as its configs were when they were started."""

    def __init__(self, name: str, engines: EngineSet, leader: int, scratch: Path) -> None:
        self.name = name
        self.engines = engines
        self.leader = leader
        self.root = Path(f"/proc/{leader}/root")  # mind absolute symlinks: they lead out
        self._scratch = scratch

    @property
    def engine(self) -> str:
        """Return ``docker`` or ``containerd``."""
        return self.engines.name

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
        timeout_s: float = 60,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node, in ``/``, with a small environment and ``env``."""
        command = self._command(args, env)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(args)} gave {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def installer(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        check: bool = False,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run the installer in the node, on the node's own Python."""
        return self.run([PYTHON, "-m", "installer", *args], env=env, check=check, timeout_s=timeout_s)

    def start_installer(self, *args: str, env: Mapping[str, str] | None = None) -> Running:
        """Start the installer in the node and return when it is a process there."""
        return self.start([PYTHON, "-m", "installer", *args], env=env)

    def start(self, args: Sequence[str], *, env: Mapping[str, str] | None = None) -> Running:
        """Start a command in the node; what still runs at the end dies with the node."""
        return Running(self._command(args, env), self._scratch / f"{uuid.uuid4().hex[:8]}.log")

    def write(self, path: str, text: str) -> None:
        """Write a file of the node, its directory included."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path: str) -> str:
        """Return the text of a file of the node."""
        return (self.root / path.lstrip("/")).read_text()

    def restart(self, unit: str) -> None:
        """Restart a unit; tests do so more often than a unit's start limit allows."""
        self.run(["systemctl", "reset-failed", unit], check=False)
        self.run(["systemctl", "restart", unit])

    def show(self, unit: str, name: str) -> str:
        """Return one of the unit's properties, such as ``ActiveState`` or ``NRestarts``."""
        return self.run(["systemctl", "show", "-P", name, unit]).stdout.strip()

    def pid_of(self, unit: str) -> int:
        """Return the unit's main process as the node numbers it, 0 if there is none."""
        return int(self.show(unit, "MainPID"))

    def journal(self, unit: str) -> str:
        """Return what the unit logged since boot."""
        return self.run(["journalctl", "--no-pager", "--output=cat", "--unit", unit]).stdout

    def start_engines(self) -> None:
        """Start what this kind of node runs and load the test image into it."""
        self.run(["systemctl", "start", "containerd"])
        if self.engines.docker:
            self.run(["systemctl", "start", "docker.socket", "docker"])
            self.run(["docker", "load", "--quiet", "--input", ARCHIVE])
        else:
            self.run(["ctr", "--namespace", "k8s.io", "images", "import", ARCHIVE])

    def marks(self) -> list[str]:
        """Return the commands that reached a stand-in of the payload: its name, then its arguments."""
        file = self.root / MARK.lstrip("/")
        return file.read_text().splitlines() if file.exists() else []

    def forget_marks(self) -> None:
        """Begin a new list of marks."""
        (self.root / MARK.lstrip("/")).unlink(missing_ok=True)

    def add_payload(self, path: str, version: str) -> None:
        """Put another version of the payload at ``path`` of the node."""
        mark_payload(self.root / path.lstrip("/"), self.root / STAND_IN.lstrip("/"), version)

    def load_fake_nvidia_module(self) -> None:
        """Make the driver look loaded, as it does from boot on."""
        (self.root / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)

    def unload_fake_nvidia_module(self) -> None:
        """Make the driver look absent."""
        with suppress(FileNotFoundError):
            (self.root / "sys/module/nvidia").rmdir()


@contextmanager
def boot(roots: Roots, engines: EngineSet, *, start: bool = True) -> Iterator[Node]:
    """Boot a node, its usual configs in place; without ``start`` its engines wait for ``start_engines``."""
    name = f"node{os.getpid()}-{uuid.uuid4().hex[:6]}"
    scratch = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    own_cgroups: list[Path] = []
    process: subprocess.Popen[bytes] | None = None
    try:
        own_cgroups += cgroups.make(name)
        process = _spawn(roots, engines, name, own_cgroups, scratch / "console.log")
        node = Node(name, engines, _leader(process, scratch / "console.log"), scratch)
        for path, text in base_configs(engines).items():
            node.write(path, text)
        if start:
            node.start_engines()
        yield node
    finally:
        if process:
            process.kill()
            process.wait(timeout=10)
        cgroups.remove(own_cgroups)
        shutil.rmtree(scratch)


def _spawn(roots: Roots, engines: EngineSet, name: str, own_cgroups: list[Path], log: Path) -> subprocess.Popen[bytes]:
    """Start nspawn as pid 1 of a pid namespace, which dies with us and takes all below with it."""
    root = roots.suites[engines.suite]
    site = f"/usr/local/lib/{roots.python}/dist-packages"
    command = ["setpriv", "--pdeathsig", "KILL"]
    command += ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ENTER, "enter"]
    command += [*with_own_loader(roots.base, "usr/bin/systemd-nspawn"), "--quiet", "--boot", f"--machine={name}"]
    command += [f"--directory={root}", "--read-only", "--volatile=overlay"]  # read-only: nodes share the lock of a root
    command += ["--register=no", "--keep-unit", "--private-network", "--capability=all", "--console=pipe"]
    command += ["--resolv-conf=off", "--timezone=off", "--link-journal=no"]
    command += ["--tmpfs=/var/lib/containerd", "--tmpfs=/var/lib/docker"]  # an overlay cannot lie on an overlay
    command += [f"--bind-ro={PROJECT}:{PROJECT}:norbind", f"--bind-ro={roots.site}:{site}"]
    environment = {
        "PATH": os.environ["PATH"],
        "CGROUPS": " ".join(str(cgroup) for cgroup in own_cgroups),
        "SYSTEMD_SECCOMP": "0",  # nspawn's filter would refuse runc's session keyring
    }
    with log.open("wb") as console:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )


def _leader(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the pid of the node's systemd once that has reached its target."""
    import psutil

    deadline = time.monotonic() + BOOT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(psutil.NoSuchProcess, StopIteration):
            below = psutil.Process(process.pid).children(recursive=True)
            leader = next(child.pid for child in below if child.name() == "systemd")
            state = ["nsenter", "-t", str(leader), "-a", "systemctl", "is-system-running"]
            said = subprocess.run(state, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
            if said in {"running", "degraded"}:
                return leader
        time.sleep(0.05)
    raise RuntimeError(f"the node did not boot: {log.read_text()}")
