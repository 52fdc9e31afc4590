"""The real program, changed by some lines; and those of the image, as the Dockerfiles make them, on this Python."""

import subprocess
import sys
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
    packages = directory / "lib/python{}.{}/site-packages".format(*sys.version_info)
    packages.mkdir(parents=True)
    for each in (PROJECT / "installer", *Path(pytest.__file__).parents[1].iterdir()):
        (packages / each.name).symlink_to(each)
    (directory / "bin").mkdir()
    (directory / "bin/python3").symlink_to(Path(sys.executable).resolve())
    text = (PROJECT / "images/start").read_text().replace("/opt/toolkit-installer", str(directory))
    for name in ("toolkit-installer", "toolkit-probe", "nvidia-toolkit"):
        (directory / "bin" / name).write_text(text)
        (directory / "bin" / name).chmod(0o755)
    return directory / "bin"
