"""What a node with a GPU is given: programs, the driver's files and devices, and the toolkit, or their stand-ins."""

import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from installer.payload.access import find_artifact
from installer.payload.files import LIBRARIES as PAYLOAD_LIBRARIES
from installer.payload.files import REQUIRED
from tests.engines.images import ARCHIVE
from tests.engines.payload import mark_payload
from tests.gpu.image import write_image
from tests.support.waiting import HANGS_S

SOURCES: Final = Path(__file__).with_name("programs")
VERSION: Final = "580.0.1"  # of the stand-in driver
# The words for tcc, which finds the sources in /usr/local.
PROGRAMS: Final = {
    "memory": "/usr/local/memory.c -ldl",
    "nvidia-smi": "/usr/local/nvidia-smi.c -ldl",
    "toolkit": "/usr/local/toolkit.c",
    f"libcuda.so.{VERSION}": "-shared -Wl,-soname=libcuda.so.1 /usr/local/libcuda.c",
    f"libnvidia-ml.so.{VERSION}": "-shared -Wl,-soname=libnvidia-ml.so.1 /usr/local/libnvidia-ml.c",
}
CUDA_ARCHIVE: Final = "cuda.tar"
# A root is never written to, for nodes may run on it: what is compiled lies on another file system there.
COMPILE: Final = """\
mount --make-rprivate / && mount --bind "$1" "$2/opt" && mount --bind "$3" "$2/usr/local" || exit 1
exec chroot "$2" sh -c 'cd /opt && exec tcc -o "$@"' tcc {name} {words}
"""
IN_THE_NODE: Final = f"/usr/lib/{platform.machine()}-linux-gnu"
# Where the driver's libraries lie on machines; each of them has libcuda.so.1, or is not meant.
DRIVERS: Final = (
    *(f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/lib64", "/usr/local/nvidia/lib64"),
    *("/usr/local/nvidia/lib", f"/run/nvidia/driver/usr/lib/{platform.machine()}-linux-gnu"),
)
TOOLS: Final = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced")
INSTALLERS: Final = ("nvidia-ctk-installer", "nvidia-toolkit")  # NVIDIA's own
FOR_NODES: Final = "/opt/gpu"
TOOLKIT: Final = "/opt/gpu-toolkit"
NEWER: Final = "/opt/gpu-toolkit-newer"
STAND_IN_NODES: Final = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
NULL: Final = "/dev/null"


def compile_programs(base: Path, target: Path) -> None:
    """Compile all programs with the tcc of the root ``base``, and write the image; needs root."""
    target.mkdir(parents=True, exist_ok=True)
    for name, words in PROGRAMS.items():
        script = COMPILE.format(name=name, words=words)
        _run("unshare", "--mount", "sh", "-c", script, "compile", str(target), str(base), str(SOURCES))
    shutil.copy(SOURCES / "stand_in.py", target)
    write_image(base, base / ARCHIVE.lstrip("/"), target / "memory", target / CUDA_ARCHIVE)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)
    if done.returncode:
        raise RuntimeError(f"cannot {' '.join(command)}: {done.stdout}{done.stderr}")


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver's files and device nodes on this machine, and where a node has them."""

    version: str
    files: dict[Path, str]
    nodes: dict[Path, str]

    def binds(self) -> Iterator[str]:
        """Yield the words by which nspawn gives them to a node."""
        for path, there in self.files.items():
            yield f"--bind-ro={path}:{there}"
        for path, there in self.nodes.items():
            yield f"--bind={path}:{there}"


def find_driver() -> Driver | None:
    """Return the driver of this machine, None where there is none."""
    for directory in map(Path, DRIVERS):
        if not (directory / "libcuda.so.1").exists():
            continue
        library = (directory / "libcuda.so.1").resolve()
        version = library.name.removeprefix("libcuda.so.")
        files = {path: f"{IN_THE_NODE}/{path.name}" for path in library.parent.glob(f"lib*.so.{version}")}
        for tool in TOOLS:
            places = (Path(shutil.which(tool) or "/nowhere"), directory.parent / "bin" / tool)
            found = next((path.resolve() for path in places if path.exists()), None)
            if found:
                files[found] = f"/usr/bin/{tool}"
        nodes = {path: str(path) for path in sorted(Path("/dev").glob("nvidia*")) if path.is_char_device()}
        nodes |= {path: str(path) for path in sorted(Path("/dev").glob("nvidia-caps/*"))}
        return Driver(version, files, nodes)
    return None


def stand_in_driver(programs: Path, scratch: Path) -> Driver:
    """Return a driver that answers by itself: its devices take anything and keep nothing."""
    files = {}
    for name in (f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"):
        files[programs / name] = f"{IN_THE_NODE}/{name}"
    files[programs / "nvidia-smi"] = "/usr/bin/nvidia-smi"
    directory = scratch / "nodes"
    directory.mkdir(exist_ok=True)
    nodes = {}
    for name in STAND_IN_NODES:
        link = directory / name  # nspawn follows it: one source each, all the same device
        link.symlink_to(NULL)
        nodes[link] = f"/dev/{name}"
    return Driver(VERSION, files, nodes)


def stand_in_toolkit(programs: Path, target: Path, version: str) -> None:
    """Write a toolkit whose runtime and nvidia-ctk give the stand-in driver to containers."""
    mark_payload(target, programs / "toolkit", version)


def copy_toolkit(source: Path, target: Path, trailer: bytes = b"") -> None:
    """Copy the toolkit's files; with a trailer they are another version, as far as an install can tell.

    Bytes behind the last section of an ELF file belong to no segment: a program runs as before.
    """
    binaries = target / "usr/bin"
    libraries = target / "usr/lib/x86_64-linux-gnu"
    for folder in (binaries, libraries):
        folder.mkdir(parents=True)
    for name in REQUIRED:
        found = find_artifact(PurePosixPath(source), name)
        if found is None:
            raise RuntimeError(f"{source} has no {name}")
        copied = (libraries if name in PAYLOAD_LIBRARIES else binaries) / name
        shutil.copy(found, copied)
        with copied.open("ab") as file:
            file.write(trailer)
    for name in INSTALLERS:
        for path in (source / "usr/bin" / name, source / "work" / name):
            if path.is_file() and not (binaries / name).exists():
                shutil.copy(path, binaries)
