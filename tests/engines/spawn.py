"""A node begins and ends as one process: pid 1 of a pid namespace in which nspawn runs, in cgroups of its own."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.engines.cache import PROJECT
from tests.engines.roots import Roots, with_own_loader
from tests.support.waiting import HANGS_S, PATIENCE_S

# Hides the machine's own systemd, lays a writable file system over the root, enters the node's cgroups and
# becomes nspawn. The engines' own overlays cannot lie on an overlay: they get directories beside it.
# nspawn ends with 133 when the node reboots: what is mounted here is the disk that it finds again.
ENTER = """\
mount --make-rprivate / && mount -t tmpfs tmpfs /run && cd /run || exit 1
mkdir upper work root containerd docker
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=/run/upper,workdir=/run/work" root || exit 1
while (
    for cgroup in $CGROUPS; do echo 0 > "$cgroup/cgroup.procs" || exit 1; done
    exec "$@"
); [ $? = 133 ]; do :; done
"""
# It dies with whoever started it, by the kernel's hand, and takes all below with it.
CONTAIN = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", ENTER, "enter"),
)
NSPAWN = (
    *("--quiet", "--boot", "--register=no", "--keep-unit", "--private-network", "--capability=all"),
    *("--console=pipe", "--resolv-conf=off", "--timezone=off", "--link-journal=no"),
    *(
        "--directory=/run/root",
        "--bind=/run/containerd:/var/lib/containerd",
        "--bind=/run/docker:/var/lib/docker",
    ),
)


def spawn(  # noqa: PLR0913, PLR0917 - a node has many sides
    roots: Roots, suite: str, name: str, cgroups: list[Path], log: Path, binds: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the node ``name`` with a suite's engines; the project is in it where it is here, read-only.

    ``binds`` are more words for nspawn, such as ``--bind=/dev/nvidia0``.
    """
    site = f"/usr/local/lib/{roots.python}/dist-packages"
    command = [*CONTAIN, *with_own_loader(roots.base, "usr/bin/systemd-nspawn"), *NSPAWN, f"--machine={name}"]
    command += [f"--bind-ro={PROJECT}:{PROJECT}:norbind", f"--bind-ro={roots.site}:{site}", *binds]
    environment = {
        "PATH": os.environ["PATH"],
        "LOWER": str(roots.suites[suite]),
        "CGROUPS": " ".join(str(cgroup) for cgroup in cgroups),
        "SYSTEMD_SECCOMP": "0",  # nspawn's filter would refuse runc's session keyring
    }
    return start_logged(command, environment, log)


def start_logged(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; what it says goes into a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill pid 1 of the outer namespace, and with it everything; unshare then reaps it and ends too."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        for init in psutil.Process(process.pid).children():
            init.kill()
    try:
        process.wait(timeout=HANGS_S)
    finally:
        process.kill()


def make_cgroups(name: str) -> list[Path]:
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


def remove_cgroups(cgroups: list[Path], *, timeout_s: float = PATIENCE_S) -> None:
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
