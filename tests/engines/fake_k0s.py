"""A k0s that does with its containerd what k0s does, with a real containerd as its child.

From pkg/component/worker/containerd of k0s 1.35.7 and 1.36.3 (component.go, configurer.go) and
pkg/supervisor/supervisor.go: the root file is written at each start; any name that is made, written, renamed
or removed in the directory of drop-ins starts a wait of 3 s for more of that, then containerd is sent SIGHUP,
which ends it, and is started again 5 s later. ``merging`` is what 1.35 does: what drop-ins say of CRI is merged
into a file of its own, on top of containerd's defaults; a later one lets containerd import the directory, and
does not start with a drop-in of an older schema.

Called as ``k0s [merging]``, with both waits in its environment. Every event is written to /run/k0s/events.
"""

import ctypes
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import tomlkit

ROOT = Path("/etc/k0s/containerd.toml")
DROP_INS = Path("/etc/k0s/containerd.d")
RUN = Path("/run/k0s")
BIN = Path("/var/lib/k0s/bin/containerd")
MERGED = RUN / "containerd-cri.toml"
SANDBOX = "localhost/busybox:1"
OLD, NEW, IMAGES = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"
# IN_MODIFY, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE: what fsnotify tells as another event than chmod
WATCHED = 0x2 | 0x40 | 0x80 | 0x100 | 0x200
MARK = "# k0s_managed=true\n"
Tree = dict[str, Any]


def merge(under: Tree, over: Tree) -> Tree:
    both = dict(under)
    for name, value in over.items():
        below = under.get(name)
        both[name] = merge(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return both


def configure(*, merging: bool) -> None:
    """Write what containerd is to read."""
    if ROOT.exists() and not ROOT.read_text().startswith(MARK):
        return
    if not merging:
        cri = {IMAGES: {"pinned_images": {"sandbox": SANDBOX}}, NEW: {"restrict_oom_score_adj": True}}
        root = {"version": 3, "imports": [f"{DROP_INS}/*.toml"], "plugins": cri}
        ROOT.write_text(MARK + tomlkit.dumps(root))
        return
    said = subprocess.run([BIN, "config", "default"], capture_output=True, check=True).stdout
    cri = tomllib.loads(said.decode())["plugins"][OLD]
    tree: Tree = {
        "version": 2,
        "plugins": {OLD: {**cri, "sandbox_image": SANDBOX, "restrict_oom_score_adj": True}},
    }
    imports = []
    for path in sorted(DROP_INS.glob("*.toml")):
        drop_in = tomllib.loads(path.read_text())
        if OLD in drop_in.get("plugins", {}):
            tree = merge(tree, drop_in)
        else:
            imports.append(str(path))
    MERGED.write_text(tomlkit.dumps(tree))
    ROOT.write_text(MARK + tomlkit.dumps({"version": 2, "imports": [*imports, str(MERGED)]}))


def refuse_old_schema() -> None:
    """End as 1.36 does before it starts anything (internal/pkg/sysinfo/probes/containerd.go)."""
    for path in DROP_INS.glob("*.toml"):
        tree = tomllib.loads(path.read_text())
        if tree.get("version", 3) != 3 or OLD in tree.get("plugins", {}):
            sys.exit(f"pre-flight check failed: {path}")


def watch() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_CLOEXEC))
    if libc.inotify_add_watch(fd, os.fsencode(DROP_INS), WATCHED) < 0:
        sys.exit("cannot watch")
    return fd


def names_of(events: bytes) -> list[str]:
    found = []
    while events:
        _, mask, _, size = struct.unpack_from("iIII", events)
        name = events[16 : 16 + size].rstrip(b"\0").decode()
        found.append(f"{mask:#x} {name}")
        events = events[16 + size :]
    return found


def start() -> subprocess.Popen[bytes]:
    # Its own process group: what is sent to k0s is not sent to containerd.
    return subprocess.Popen(
        [
            BIN,
            "--root=/var/lib/containerd/k0s",  # a node's own /var has no overlays on it
            f"--state={RUN}/containerd",
            f"--address={RUN}/containerd.sock",
            "--log-level=info",
            f"--config={ROOT}",
        ],
        process_group=0,
    )


def main(*, merging: bool) -> None:
    quiet_s, respawn_s = float(os.environ["QUIET_S"]), float(os.environ["RESPAWN_S"])
    for directory in (RUN, DROP_INS, BIN.parent):
        directory.mkdir(parents=True, exist_ok=True)
    shutil.copy("/usr/bin/containerd", BIN)
    if not merging:
        refuse_old_schema()
    configure(merging=merging)
    child, changes, due = start(), watch(), float("inf")
    stopping: list[int] = []  # between two steps only: a containerd that was just started would be left alone
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    while not stopping:
        ready, _, _ = select.select([changes], [], [], 0.05)
        if ready:
            with (RUN / "events").open("a") as log:
                log.writelines(f"{each}\n" for each in names_of(os.read(changes, 65536)))
            due = time.monotonic() + quiet_s
        if time.monotonic() > due:
            due = float("inf")
            if merging:
                configure(merging=True)
            child.send_signal(signal.SIGHUP)
        if child.poll() is not None:
            time.sleep(respawn_s)
            child = start()
    child.terminate()
    child.wait()


if __name__ == "__main__":
    main(merging="merging" in sys.argv[1:])
