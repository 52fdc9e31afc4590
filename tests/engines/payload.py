"""A toolkit to install: real ELF files under the real names, all made of stand_in.c, which leaves a mark."""

import shutil
from pathlib import Path

MARK = "/run/mark"
ARTIFACTS = "/artifacts"  # where every node has one payload, ready to be a --toolkit-source
STAND_IN = "/opt/stand-in"
EXECUTABLES = (
    "nvidia-ctk",
    "nvidia-cdi-hook",
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-cli",
    "nvidia-container-runtime-hook",
)
LIBRARIES = ("libnvidia-container.so", "libnvidia-container-go.so")


def mark_payload(directory: Path, stand_in: Path, version: str = "1.0.0") -> Path:
    """Write a tree such as ``/artifacts`` of the image; no two files and no two versions are alike."""
    binaries, libraries = directory / "usr/bin", directory / "usr/lib/x86_64-linux-gnu"
    for folder in (binaries, libraries):
        folder.mkdir(parents=True, exist_ok=True)
    for name in EXECUTABLES:
        _copy(stand_in, binaries / name, f"{name} {version}", 0o755)
    for name in LIBRARIES:
        _copy(stand_in, libraries / f"{name}.{version}", f"{name} {version}", 0o644)
        link = libraries / f"{name}.1"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}.{version}")
    return directory


def _copy(stand_in: Path, target: Path, trailer: str, mode: int) -> None:
    # Bytes behind the last section belong to no segment: the program runs as before.
    shutil.copyfile(stand_in, target)
    with target.open("ab") as file:
        file.write(f"\n{trailer}\n".encode())
    target.chmod(mode)
