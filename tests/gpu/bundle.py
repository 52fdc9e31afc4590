"""A bundle for runc: Python and nothing of a driver, so that what a container finds comes by CDI or our runtime."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

NAMESPACES: Final = ("mount", "pid", "ipc", "uts")
OF_GLIBC: Final = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
LINKED: Final = re.compile(r"(/\S+)(?: \(0x|$)")  # a library as ldd tells where it was found


def python_root(root: Path) -> str:
    """Make a root with this Python in it, but for its standard library; return where its program is.

    Its libraries are copies, for a driver may lie in the same directory as they do.
    """
    program = os.path.realpath(sys.executable)
    for name in ("proc", "dev", "etc", "tmp", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for path in {program, *_libraries(program)}:
        there = root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, there)
    return program


def _libraries(program: str) -> Iterator[str]:
    import _ctypes  # it needs libffi, of which the interpreter itself knows nothing

    own = (program, *filter(None, [getattr(_ctypes, "__file__", None)]))
    for each in own:
        said = subprocess.run(["ldd", each], capture_output=True, text=True, check=True).stdout
        found = [found[1] for line in said.splitlines() if (found := LINKED.search(line))]
        yield from found
        # Every image has these of glibc, and the driver's libraries need them.
        libc = next(Path(path) for path in found if Path(path).name == "libc.so.6")
        yield from (str(path) for name in OF_GLIBC if (path := libc.with_name(name)).exists())


def config(root: Path, command: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Return the config.json of a container that runs ``command`` as root with no capability."""
    library = sysconfig.get_path("stdlib")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [*command],
            "env": ["PATH=/usr/bin:/usr/sbin", *(f"{name}={value}" for name, value in env.items())],
            "cwd": "/",
        },
        "root": {"path": str(root)},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": library, "type": "bind", "source": library, "options": ["rbind", "ro"]},
        ],
        "linux": {
            "namespaces": [{"type": name} for name in NAMESPACES],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "devices": [],
        },
    }


def with_device(config: Mapping[str, Any], specification: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a config with a device of a CDI specification, as an engine adds it."""
    given: dict[str, Any] = json.loads(json.dumps(config))
    device = next(each for each in specification["devices"] if each["name"] == name)
    for edits in (specification.get("containerEdits", {}), device["containerEdits"]):
        given["process"]["env"] += edits.get("env", ())
        given["mounts"] += map(_mount, edits.get("mounts", ()))
        for hook in edits.get("hooks", ()):
            said = {key: value for key, value in hook.items() if key != "hookName"}
            given.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(said)
        for node in map(_node, edits.get("deviceNodes", ())):
            given["linux"]["devices"].append(node)
            rule = {key: node[key] for key in ("type", "major", "minor")}
            given["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm", **rule})
        groups = edits.get("additionalGids", ())
        given["process"]["user"].setdefault("additionalGids", []).extend(groups)
    given["mounts"].sort(key=lambda each: each["destination"].count("/"))
    return given


def _mount(edit: Mapping[str, Any]) -> dict[str, Any]:
    options = [*edit.get("options", ())]
    bind = [] if {"bind", "rbind"} & {*options} else ["bind"]
    return {
        "destination": edit["containerPath"],
        "source": edit["hostPath"],
        "type": edit.get("type", "bind"),
        "options": [*bind, *options],
    }


def _node(edit: Mapping[str, Any]) -> dict[str, Any]:
    found = Path(edit.get("hostPath", edit["path"])).stat()
    return {
        "path": edit["path"],
        "type": "b" if stat.S_ISBLK(found.st_mode) else "c",
        "major": os.major(found.st_rdev),
        "minor": os.minor(found.st_rdev),
        "fileMode": stat.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "gid": found.st_gid,
    }
