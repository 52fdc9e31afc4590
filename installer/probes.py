"""A probe whose answer is good is answered here, for a tenth of ``status``, which tells why it is not.

``run`` publishes with its readiness how everything stood that ``status`` looks at. Whatever was changed
since has another mark, and ``status`` is asked.
"""

import posix
from _stat import S_ISREG

from installer.host.glance import HELD, OPEN, PROC, halted, is_held_pidfile, is_plain, mark, trusted_uids

READ_BYTES = 1 << 20
WRITABLE = 0o022
# As in flags.py, which takes too long to load.
INSTALL_DIR = ("TOOLKIT_INSTALLER_INSTALL_DIR", "/usr/local/nvidia")
HOST_ROOT = ("TOOLKIT_INSTALLER_HOST_ROOT", "/")
PID_FILE = ("TOOLKIT_INSTALLER_PID_FILE", "/run/nvidia/toolkit/toolkit.pid")
MOUNT = ("TOOLKIT_INSTALLER_MOUNT", "")


def answer(words: list[str], environment: dict[bytes, bytes] = posix.environ) -> int | None:
    """Return 0 for a probe whose answer is good; None for all that ``status`` itself has to answer.

    Links on the way to the pidfile, mounts and flags are its business, too.
    """

    def variable(name: str, default: str) -> str:
        return environment.get(name.encode(), b"").decode("utf-8", "surrogateescape") or default

    if words not in (["status", "--alive"], ["status", "--ready"]) or variable(*MOUNT):
        return None
    host_root = variable(*HOST_ROOT)
    pid_file = variable(PID_FILE[0], "") or host_root.rstrip("/") + PID_FILE[1]
    if words[1] == "--alive":
        return 0 if is_plain(pid_file) and is_held_pidfile(pid_file) else None
    ready = pid_file.rpartition("/")[0] + "/ready"
    return 0 if is_plain(ready) and _holds(ready, variable(*INSTALL_DIR), host_root) else None


def _holds(ready: str, install_dir: str, host_root: str) -> bool:
    """Tell whether readiness is of this boot and of a process that runs, and all is as it was then."""
    try:
        text = content(ready)
        boot_id = content(f"{PROC}/sys/kernel/random/boot_id").strip()
        begin, end = f'{{"boot_id": "{boot_id}", "pid": ', f', "asked": ["{install_dir}", "{host_root}"]'
        said, _, seen = text.partition(', "seen": ["')
        pid = said.removeprefix(begin).partition(",")[0]
        if not (said.startswith(begin) and said.endswith(end) and pid.isdigit() and seen.endswith('"]}\n')):
            return False
        posix.stat(f"{PROC}/{pid}")
        return all(_is_unchanged(line) for line in seen[:-4].split('", "'))
    except (OSError, ValueError):  # a path that is none
        return False


def _is_unchanged(line: str) -> bool:
    """Tell whether a mark still fits its path, which was a directory to list or anything to look at."""
    before, _, path = line.partition(" ")
    if before == HELD:
        return is_held_pidfile(path) and not halted(path)
    return mark(path) == before or mark(path, listed=True) == before


def content(path: str) -> str:
    """Return what a file of root's holds, one that nobody else may write.

    Raises:
        OSError: it is no such file.
    """
    fd = posix.open(path, OPEN)
    try:
        status = posix.fstat(fd)
        if not S_ISREG(status.st_mode) or status.st_uid not in trusted_uids() or status.st_mode & WRITABLE:
            raise PermissionError
        return posix.read(fd, READ_BYTES).decode("latin-1")
    finally:
        posix.close(fd)
