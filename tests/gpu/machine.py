"""A machine with a GPU: what it lacks for the test, and what containers on it see of the GPU."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from installer.cdi.generate import gpu_specification, roots
from installer.cdi.plan import SPECIFICATION
from installer.host.files import Host
from installer.host.programs import ENVIRONMENT
from installer.lifecycle import install as daemon
from installer.lifecycle import uninstall
from installer.model.facts import Record
from installer.model.options import Options
from installer.payload.access import find_artifact, install_dir_obstacles
from tests.engines.cache import PROJECT
from tests.gpu.bundle import config, python_root, with_device
from tests.support.waiting import until

HOST: Final = Host.under(PurePosixPath("/"))
DRIVER: Final = "proc/driver/nvidia/version"
DEVICE: Final = "dev/nvidiactl"
UVM: Final = "dev/nvidia-uvm"
OPERATORS: Final = PurePosixPath("/run/nvidia/driver")
SHIPPED: Final = ("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime")
ALL: Final = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
# Where only root can change what is installed, on a file system that programs are started from.
PLACES: Final = (PROJECT / "build", *map(Path, ("/opt", "/usr/local", "/var/lib", "/root")))
NAME: Final = "gpu"
ENDS_S: Final = 180  # the first that opens a GPU has the driver set it up


def lacks(source: Path) -> str:
    """Return what this machine lacks, as part of a sentence; "" for nothing."""
    tools = (name for name in ("runc", "ldd") if not shutil.which(name))
    shipped = [name for name in SHIPPED if not find_artifact(PurePosixPath(source), name)]
    missing = (
        "root's rights" if os.geteuid() else "",
        "" if Path("/", DRIVER).exists() else f"an NVIDIA driver that is loaded (no /{DRIVER})",
        "" if Path("/", DEVICE).exists() else f"a GPU (no /{DEVICE})",
        "" if Path("/", UVM).exists() else f"/{UVM} (nvidia-modprobe -u -c 0 makes it)",
        *tools,
        f"NVIDIA's toolkit below TOOLKIT_SOURCE={source} (no {' '.join(shipped)})" if shipped else "",
    )
    return ", ".join(filter(None, missing))


def place() -> Path | None:
    """Return a directory to install below; None where there is none."""
    for each in PLACES:
        path = PurePosixPath(each)
        if each.parent.is_dir() and not [*install_dir_obstacles(HOST, path)]:
            each.mkdir(exist_ok=True)
            return each
    return None


def _run(
    directory: Path,
    runtime: str,
    program: str,
    env: Mapping[str, str],
    given: Callable[[dict[str, Any]], dict[str, Any]] = lambda said: said,
) -> str:
    """Return what a Python program prints in a container of a runtime's; ``given`` may add a device.

    Raises:
        RuntimeError: it does not end well.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    with tempfile.TemporaryDirectory(dir=directory) as bundle, Path(bundle, "said").open("w+") as said:
        root = Path(bundle, "rootfs")
        wanted = given(config(root, (python_root(root), "-I", "-S", "-c", program), env))
        Path(bundle, "config.json").write_text(json.dumps(wanted))
        # A root of its own: nobody's containers are met.
        call = partial(subprocess.run, check=True, timeout=ENDS_S, env=environment, stdin=subprocess.DEVNULL)
        runtime_with = (runtime, "--root", f"{bundle}/state")

        def state() -> dict[str, Any]:
            told: dict[str, Any] = json.loads(
                call((*runtime_with, "state", NAME), capture_output=True).stdout
            )
            return told

        try:
            # As engines do it: NVIDIA's runtime changes what is created, not what is run.
            call((*runtime_with, "create", "--bundle", bundle, NAME), stdout=said, stderr=said)
            call((*runtime_with, "start", NAME), stdout=said, stderr=said)
            until(lambda: state()["status"] == "stopped")
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{error}: {Path(said.name).read_text().strip()}") from error
        finally:
            subprocess.run((*runtime_with, "delete", "--force", NAME), capture_output=True, check=False)
        return Path(said.name).read_text()


@dataclass(frozen=True, slots=True)
class Machine:
    """The toolkit as our program has installed it, without an engine, below a directory of its own."""

    options: Options
    directory: Path

    def ours(self) -> dict[str, Any]:
        """Return the CDI specification of the GPUs as our program writes it.

        Raises:
            RuntimeError: it has none.
        """
        found = gpu_specification(HOST, self.options, (), Record(), HOST.read(SPECIFICATION))
        if found.lacking:
            raise RuntimeError(found.lacking)
        said: dict[str, Any] = json.loads(found.text)
        return said

    def theirs(self) -> dict[str, Any]:
        """Return what nvidia-ctk says by itself of the same driver."""
        driver, dev = roots(HOST, self.options)
        ctk = f"{self.options.layout.toolkit}/nvidia-ctk"
        command = (ctk, "cdi", "generate", "--format=json", f"--driver-root={driver}", f"--dev-root={dev}")
        # In the environment that ours is made in: where programs are looked for, it is PATH that tells.
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=ENDS_S, env=dict(ENVIRONMENT)
        )
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def by_cdi(self, name: str, program: str) -> str:
        """Return what a Python program prints in a container of runc's that gets a device by CDI."""
        return _run(self.directory, "runc", program, {}, lambda said: with_device(said, self.ours(), name))

    def by_runtime(self, program: str) -> str:
        """Return what it prints in a container of our runtime's that asks for all GPUs."""
        return _run(self.directory, f"{self.options.layout.toolkit}/nvidia-container-runtime", program, ALL)

    def by_nothing(self, program: str) -> str:
        """Return what it prints in a container of runc's that asks for nothing."""
        return _run(self.directory, "runc", program, {})


@contextmanager
def installed(source: Path, directory: Path) -> Iterator[Machine]:
    """Install the toolkit below ``directory`` for the operator's driver or the host's; undo that in the end."""
    options = Options(
        engines=(),
        toolkit_source=PurePosixPath(source),
        install_dir=PurePosixPath(directory, "nvidia"),
        pid_file=PurePosixPath(directory, "toolkit.pid"),
        driver_root=str(OPERATORS) if HOST.names(OPERATORS) else "/",
    )
    daemon.install(options)
    try:
        yield Machine(options, directory)
    finally:
        uninstall.uninstall(options)
