"""The image of the CUDA test: the busybox of the engine tests, a C library, and a program that copies memory.

No registry is asked: the driver's own API comes with the driver, by CDI or by our runtime.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Final

IMAGE: Final = "localhost/cuda:1"
PROGRAM: Final = "/usr/bin/memory"
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
LOADER: Final = "usr/lib64/ld-linux-x86-64.so.2"
# The driver's libraries need these of the C library.
OF_GLIBC: Final = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")


def write_image(base: Path, busybox: Path, program: Path, archive: Path) -> None:
    """Write the image: one layer more than the archive ``busybox``, with the C library of the root ``base``."""
    layer = _layer(base, program)
    with tarfile.open(busybox) as old, tarfile.open(archive, "w") as new:
        manifest = json.loads(_content(old, "manifest.json"))[0]
        config = json.loads(_content(old, manifest["Config"]))
        config["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(layer).hexdigest()}")
        config["history"].append({"created_by": "cuda"})
        text = json.dumps(config).encode()
        name = hashlib.sha256(text).hexdigest() + ".json"
        layers = [*manifest["Layers"], "cuda/layer.tar"]
        for each in manifest["Layers"]:
            _add(new, each, _content(old, each))
        _add(new, "cuda/layer.tar", layer)
        _add(new, name, text)
        told = [{"Config": name, "RepoTags": [IMAGE], "Layers": layers}]
        _add(new, "manifest.json", json.dumps(told).encode())


def _layer(base: Path, program: Path) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for folder in ("usr", "usr/bin", "usr/lib", LIBRARIES, "usr/lib64"):
            _add(tar, folder, kind=tarfile.DIRTYPE)
        for link in ("lib", "lib64"):
            _add(tar, link, kind=tarfile.SYMTYPE, link=f"usr/{link}")
        for name in OF_GLIBC:
            _add(tar, f"{LIBRARIES}/{name}", (base / LIBRARIES / name).read_bytes())
        loader = next((base / LIBRARIES).glob("ld-linux-*.so.*"))
        _add(tar, LOADER, loader.read_bytes())
        _add(tar, PROGRAM.lstrip("/"), program.read_bytes())
    return written.getvalue()


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} in the archive of an image is no file")
    return file.read()


def _add(
    tar: tarfile.TarFile, name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.linkname = link
    entry.size = len(content)
    entry.mode = 0o755
    tar.addfile(entry, io.BytesIO(content))
