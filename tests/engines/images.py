"""A container image without a registry: busybox in the format of ``docker save``."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

IMAGE = "localhost/busybox:1"  # a name that no engine completes with a registry
ARCHIVE = "/opt/busybox.tar"  # where every node has it
APPLETS = ("sh", "sleep", "cat", "ls", "echo", "true", "false", "id", "env", "mount", "ps", "kill")
# As a sandbox's own program does, it ends when it is told to: a node goes down at once.
PAUSE = ["/bin/sh", "-c", "trap exit TERM; sleep 100000 & wait"]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(busybox: Path, archive: Path, machine: str) -> None:
    """Write the image; ``busybox`` is a static one, ``machine`` as ``uname -m`` says it."""
    layer = _layer(busybox.read_bytes())
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": PAUSE},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
            "history": [{"created_by": "busybox"}],
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer/layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, name, config)
        _add(tar, "layer/layer.tar", layer)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _layer(busybox: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for folder in ("bin", "tmp", "etc", "proc", "sys", "dev", "run"):
            _add(tar, folder, kind=tarfile.DIRTYPE)
        _add(tar, "bin/busybox", busybox)
        for applet in APPLETS:
            _add(tar, f"bin/{applet}", kind=tarfile.SYMTYPE, link="busybox")
        _add(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    return written.getvalue()


def _add(
    tar: tarfile.TarFile, name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size, entry.mode = kind, link, len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))
