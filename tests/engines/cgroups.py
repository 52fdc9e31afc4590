"""Every node has a cgroup of its own in each hierarchy, and leaves none behind."""

import os
import time
from contextlib import suppress
from pathlib import Path


def make(name: str) -> list[Path]:
    """Create the cgroup ``name`` in every mounted hierarchy and return the directories."""
    made = []
    for mount in _hierarchies():
        cgroup = mount / name
        cgroup.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):  # cgroup v1 starts with none and takes no process then
            if (mount / setting).exists() and not (mount / "cgroup.controllers").exists():
                (cgroup / setting).write_text((mount / setting).read_text())
        made.append(cgroup)
    return made


def remove(cgroups: list[Path], *, timeout_s: float = 5) -> None:
    """Remove the cgroups, which the last process may only just be leaving, and all below them."""
    deadline = time.monotonic() + timeout_s
    while left := [cgroup for cgroup in cgroups if cgroup.exists()]:
        for cgroup in left:
            for below in sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True):
                with suppress(OSError):
                    below.rmdir()
            with suppress(OSError):
                cgroup.rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"cannot remove {left[0]}")
        time.sleep(0.02)


def _hierarchies() -> list[Path]:
    """Return where cgroup v1 holds this process, and the root of cgroup v2, the one place v2 allows."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found.append(Path(mount))
        elif kind == "cgroup":
            here = next(
                path
                for names, path in own.items()
                if names and set(names.split(",")) <= set(options.split(","))
            )
            found.append(Path(mount, os.path.relpath(here, root)))
    return list(dict.fromkeys(found))
