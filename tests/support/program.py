"""The real program, changed by some lines; and those of the image, as the Dockerfiles make them, on this Python."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

from tests.support import preloaded

PROJECT = Path(__file__).parents[2]


def patched(change: str, *words: str) -> preloaded.Done:
    """Call the real program after some lines that change it."""
    command = [sys.executable, "-c", f"{change}\nfrom installer.__main__ import main\nmain()", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=preloaded.ENVIRONMENT
    )


def as_in_the_image(directory: Path) -> Path:
    """Make the image's /opt/toolkit-installer in ``directory``; return where its programs are."""
    packages = Path(pytest.__file__).parents[1]
    return make_program(directory, directory, Path(sys.executable).resolve(), packages)


def make_program(directory: Path, path: Path, python: Path, packages: Path) -> Path:
    """Make the image's /opt/toolkit-installer in ``directory``; return where its programs are.

    ``packages`` is a site-packages directory. ``path`` is the directory's path, and ``python`` the interpreter's,
    for the programs.
    """
    site = directory / "lib" / packages.parent.name / "site-packages"
    site.mkdir(parents=True)
    # Copies: children are started by the real path of the program.
    shutil.copytree(PROJECT / "installer", site / "installer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in _packages_of_the_image():
        if (packages / name).is_dir():
            shutil.copytree(packages / name, site / name)
    (directory / "bin").mkdir()
    (directory / "bin/python3").symlink_to(python)
    text = (PROJECT / "images/start").read_text().replace("/opt/toolkit-installer", str(path))
    for name in ("toolkit-installer", "toolkit-probe", "nvidia-toolkit"):
        (directory / "bin" / name).write_text(text)
        (directory / "bin" / name).chmod(0o755)
    return directory / "bin"


def _packages_of_the_image() -> list[str]:
    """Return the names in the image's site-packages: what requirements.txt locks, and pip's record of ours."""
    locked = re.findall(r"^([\w.-]+)==", (PROJECT / "requirements.txt").read_text(), re.MULTILINE)
    packages = {*locked, "node-toolkit-installer"} - {"flit-core"}  # the builder is uninstalled
    names: set[str] = set()
    for package in packages:
        names.update(file.parts[0] for file in files(package) or () if file.suffix != ".pth")
    return sorted(names - {"..", "__pycache__"})
