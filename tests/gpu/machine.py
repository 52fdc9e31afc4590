"""A machine with a GPU: what it lacks for the test, and what containers on it see of the GPU."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from installer import daemon, uninstall
from installer.decide.options import Options
from installer.decide.rows import Record
from installer.host.files import Host
from installer.record.gpus import gpu_specification, roots
from tests.gpu.bundle import config, python_root, with_device

HOST: Final = Host.under(PurePosixPath("/"))
DRIVER: Final = "proc/driver/nvidia/version"
DEVICE: Final = "dev/nvidiactl"
SHIPPED: Final = ("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime")
ALL: Final = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


def lacks(source: Path, root: Path = Path("/"), path: str | None = None, uid: int | None = None) -> str:
    """Return what this machine lacks, as part of a sentence; "" for nothing."""
    tools = (name for name in ("runc", "ldd") if not shutil.which(name, path=path))
    shipped = [name for name in SHIPPED if not (source / "usr/bin" / name).exists()]
    missing = (
        "root's rights" if (os.geteuid() if uid is None else uid) else "",
        "" if (root / DRIVER).exists() else f"an NVIDIA driver that is loaded (no /{DRIVER})",
        "" if (root / DEVICE).exists() else f"a GPU (no /{DEVICE})",
        *tools,
        f"NVIDIA's toolkit below TOOLKIT_SOURCE={source} (no {' '.join(shipped)} in usr/bin)"
        if shipped
        else "",
    )
    return ", ".join(filter(None, missing))


@dataclass(frozen=True, slots=True)
class Machine:
    """The toolkit as our program has installed it, without an engine, below a directory of its own."""

    options: Options
    directory: Path

    @property
    def toolkit(self) -> PurePosixPath:
        return self.options.layout.toolkit

    def ours(self) -> dict[str, Any]:
        """Return the CDI specification of the GPUs as our program writes it.

        Raises:
            RuntimeError: it has none.
        """
        found = gpu_specification(HOST, self.options, (), Record())
        if found.lacking:
            raise RuntimeError(found.lacking)
        said: dict[str, Any] = json.loads(found.text)
        return said

    def theirs(self) -> dict[str, Any]:
        """Return what nvidia-ctk says by itself of the same driver."""
        driver, dev = roots(HOST, self.options)
        command = [f"{self.toolkit}/nvidia-ctk", "cdi", "generate", "--format=json"]
        command += [f"--driver-root={driver}", f"--dev-root={dev}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def by_cdi(self, name: str, program: str) -> str:
        """Return what a Python program prints in a container of runc's that gets a device by CDI."""
        return self._run("runc", program, {}, name)

    def by_runtime(self, program: str) -> str:
        """Return what it prints in a container of our runtime's that asks for all GPUs."""
        return self._run(f"{self.toolkit}/nvidia-container-runtime", program, ALL)

    def by_nothing(self, program: str) -> str:
        """Return what it prints in a container of runc's that asks for nothing."""
        return self._run("runc", program, {})

    def _run(self, runtime: str, program: str, env: Mapping[str, str], device: str = "") -> str:
        with tempfile.TemporaryDirectory(dir=self.directory) as bundle:
            root = Path(bundle, "rootfs")
            said = config(root, (python_root(root), "-I", "-S", "-c", program), env)
            if device:
                said = with_device(said, self.ours(), device)
            Path(bundle, "config.json").write_text(json.dumps(said))
            # A root of its own: nobody's containers are met.
            command = [runtime, "--root", f"{bundle}/state", "run", "--bundle", bundle, Path(bundle).name]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
        if done.returncode:
            raise RuntimeError(f"{runtime} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


@contextmanager
def installed(source: Path, directory: Path, driver_root: str = "auto") -> Iterator[Machine]:
    """Install the toolkit below ``directory``, and undo that in the end."""
    options = Options(
        engines=(),
        toolkit_source=PurePosixPath(source),
        install_dir=PurePosixPath(directory, "nvidia"),
        pid_file=PurePosixPath(directory, "toolkit.pid"),
        driver_root=driver_root,
    )
    daemon.install(options)
    try:
        yield Machine(options, directory)
    finally:
        uninstall.uninstall(options)
