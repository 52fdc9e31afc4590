"""An image as its archive has it: the files that a container sees, and what should not be among them."""

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

COMPILERS = re.compile(r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|cpp|tcc|ld|as|make|rustc|go)(-[\d.]+)?")
PIP = re.compile(
    r"(.*/)?(bin/pip[\d.]*|site-packages/(pip|setuptools|flit_core|wheel)/.*|ensurepip/.*|.*\.whl)"
)
CACHES = re.compile(r"(var/cache|var/lib/apt/lists|var/log|tmp|var/tmp|root/\.cache)/.+")
PROGRAM = "opt/toolkit-installer/"


@dataclass(frozen=True, slots=True)
class Image:
    """What an archive of ``docker save`` holds; ``files`` are paths without a slash in front."""

    config: dict[str, Any]
    files: frozenset[str]
    shell: str = ""  # what usr/bin/sh is a link to
    times: frozenset[int] = frozenset()  # of all files above the base
    by_time: frozenset[str] = frozenset()  # those that Python has compiled for a source of one time alone


def read(archive: Path) -> Image:
    """Read an archive with one image."""
    with tarfile.open(archive) as tar:
        (manifest,) = json.load(_member(tar, "manifest.json"))
        config = json.load(_member(tar, manifest["Config"]))
        shell, files, times, by_time = "", set[str](), set[int](), set[str]()
        for number, name in enumerate(manifest["Layers"]):
            with tarfile.open(fileobj=_member(tar, name)) as layer:
                members = layer.getmembers()
                if number:  # above the base
                    by_time |= {each.name for each in members if _is_by_time(layer, each)}
                    times |= {int(each.mtime) for each in members}
            files = _laid_over(files, members)
            shell = next((each.linkname for each in members if each.name.endswith("bin/sh")), shell)
    return Image(config, frozenset(files), shell, frozenset(times), frozenset(by_time))


def _is_by_time(layer: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    if not (member.isfile() and member.name.endswith(".pyc")):
        return False
    return _member(layer, member).read(8)[4:] == bytes(4)  # PEP 552


def _member(tar: tarfile.TarFile, member: str | tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(member)
    assert file is not None, f"{member} is no file"
    return file


def _laid_over(below: set[str], members: list[tarfile.TarInfo]) -> set[str]:
    """Return what is seen once a layer lies over ``below``: ``.wh.NAME`` takes NAME away."""
    names = {each.name.removeprefix("./") for each in members if not each.isdir()}
    marks = {name for name in names if name.rpartition("/")[2].startswith(".wh.")}
    gone = {mark.replace(".wh..wh..opq", "").replace(".wh.", "").rstrip("/") for mark in marks}
    kept = {name for name in below if not any(name == each or name.startswith(each + "/") for each in gone)}
    return kept | names - marks


def problems(image: Image) -> Iterator[str]:
    """Yield what is in the image and should not be, and what is not and should be."""
    # All files get one time, so what was compiled for another one is compiled again at each start.
    yield from (f"{file} is compiled for a source of another time" for file in sorted(image.by_time))
    pattern = re.compile(r"__pycache__/(.*)\.cpython-\d+\.pyc")
    compiled = {pattern.sub(r"\1.py", file) for file in image.files if pattern.search(file)}
    for file in sorted(image.files):
        folder, _, name = file.rpartition("/")
        if file.startswith(PROGRAM) and name.endswith(".py") and file not in compiled:
            yield f"{file} is not compiled"
        if folder.endswith("bin") and COMPILERS.fullmatch(name):
            yield f"{file} is a compiler"
        if PIP.fullmatch(file):
            yield f"{file} belongs to pip"
        if CACHES.fullmatch(file):
            yield f"{file} is a cache"
    for needed in ("usr/bin/sh", f"{PROGRAM}bin/toolkit-installer", f"{PROGRAM}bin/nvidia-toolkit"):
        if needed not in image.files:
            yield f"{needed} is not there"
    if image.shell != "bash":
        yield f"usr/bin/sh is {image.shell}, which keeps TERM from the script of the GPU Operator"
    if image.config["config"]["Env"][0].partition("=")[2].split(":")[0] != f"/{PROGRAM}bin":
        yield "the programs are not on the PATH"
    created = datetime.fromisoformat(image.config["created"]).timestamp()
    if others := image.times - {created}:
        yield f"{len(others)} times of the build are in it, and another build would have another digest"
