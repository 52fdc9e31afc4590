"""What NVIDIA's runtime and nvidia-ctk do for a container, on a node whose driver is a stand-in."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
FILES = (f"{LIBRARIES}/libcuda.so.1", f"{LIBRARIES}/libnvidia-ml.so.1", "/usr/bin/nvidia-smi")
NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0")
VARIABLE = "NVIDIA_VISIBLE_DEVICES="
NOTHING = {"", "void", "none"}
READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


def add_gpus(config: dict[str, Any]) -> None:
    """Add the GPU to a container's config where its environment asks for it."""
    environment = config["process"].get("env") or []
    wanted = [pair.removeprefix(VARIABLE) for pair in environment if pair.startswith(VARIABLE)]
    if not wanted or wanted[-1] in NOTHING:
        return
    for path in FILES:
        mount = {"destination": path, "source": os.path.realpath(path), "type": "bind", "options": READ_ONLY}
        config["mounts"].append(mount)
    linux = config["linux"]
    allowed = linux.setdefault("resources", {}).setdefault("devices", [])
    for path in NODES:
        found = Path(path).stat()
        number = {"type": "c", "major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
        linux.setdefault("devices", []).append(
            {"path": path, "fileMode": stat.S_IMODE(found.st_mode), **number}
        )
        allowed.append({"allow": True, "access": "rwm", **number})


def specification(words: list[str]) -> dict[str, Any]:
    """Return the specification that the words of ``nvidia-ctk cdi generate`` ask for."""
    given = dict(word.partition("=")[::2] for word in words)
    nodes = {"deviceNodes": [{"path": NODES[-1]}]}
    mounts = [
        {"hostPath": os.path.realpath(path), "containerPath": path, "options": READ_ONLY} for path in FILES
    ]
    hook = {
        "hookName": "createContainer",
        "path": given["--nvidia-cdi-hook-path"],
        "args": ["nvidia-cdi-hook", "update-ldcache"],
    }
    return {
        "cdiVersion": "0.5.0",
        "kind": f"{given['--vendor']}/{given['--class']}",
        "devices": [{"name": name, "containerEdits": nodes} for name in ("0", "all")],
        "containerEdits": {
            "env": [f"{VARIABLE}void"],
            "deviceNodes": [{"path": path} for path in NODES[:-1]],
            "hooks": [hook],
            "mounts": mounts,
        },
    }


def main(words: list[str]) -> None:
    """Do as the program does whose name is the first of the words."""
    if words[0].startswith("nvidia-ctk"):
        sys.stdout.write(json.dumps(specification(words[1:])))
        return
    if "create" in words:
        config = Path(words[words.index("--bundle") + 1], "config.json")
        text = json.loads(config.read_text())
        add_gpus(text)
        config.write_text(json.dumps(text))
    os.execvp("runc", ["runc", *words[1:]])  # noqa: S606 - as the program that it stands in for


main(sys.argv[1:])
