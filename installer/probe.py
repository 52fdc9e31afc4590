"""The probe of a kubelet: does ``run`` live (--alive), has it proven its engines (--ready)?

A ``run`` whose first install has ended, or waits, is started (--started): its readiness tells the rest.

The probe imports no module of ours, and takes no lock: a probe excludes no process. A no costs hardly more
than a yes: the reason is the one of the last check of ``run``. Without a reason there the probe becomes
``status``, which looks at the node.
"""

import os
import sys

MOST_BYTES = 64 << 10
AT_WORK = "run is still at its first install: wait, or see its log"


def main(words: list[str]) -> int:
    """Return 0 if the pidfile's process holds the lock, and the file ``ready`` is of the same process."""
    root = os.environ.get("TOOLKIT_INSTALLER_HOST_ROOT", "").rstrip("/")
    pid_file = os.environ.get("TOOLKIT_INSTALLER_PID_FILE") or f"{root}/run/nvidia/toolkit/toolkit.pid"
    reason = ""
    try:
        pid = int(_text(pid_file))
        inode = os.lstat(pid_file).st_ino
        good = _has_lock(pid, inode)
        if words == ["--ready"]:
            lives = good
            good = lives and _is_ready(pid_file, pid)
            if lives and not good:
                reason = _find_reason(pid_file, pid)
        elif words == ["--started"]:
            words = ["--ready"]
            lives = good
            good = lives and _has_checked(pid_file)
            if lives and not good:
                reason = AT_WORK
    except (OSError, ValueError, KeyError, TypeError):
        good = False
    if reason:
        print(reason)  # noqa: T201 - Kubernetes shows the reason
        return 1
    if not good:
        os.execvp("toolkit-installer", ["toolkit-installer", "status", *words])  # noqa: S606 - no shell is meant to be there
    return 0


def _is_ready(pid_file: str, pid: int) -> bool:
    """Tell whether a process has published readiness in this boot."""
    boot_id = _text("/proc/sys/kernel/random/boot_id").strip()
    try:
        ready = _text(os.path.join(os.path.dirname(pid_file), "ready"))
    except FileNotFoundError:
        return False
    return ready.startswith(f'{{"boot_id": "{boot_id}", "pid": {pid}, ')


def _has_checked(pid_file: str) -> bool:
    """Tell whether the process that has written the pidfile has checked the node."""
    # A process writes its pidfile when it begins: an older check is of another process.
    try:
        checked_ns = os.stat(f"{pid_file}.state").st_mtime_ns
    except FileNotFoundError:
        return False
    return checked_ns > os.stat(pid_file).st_mtime_ns


def _find_reason(pid_file: str, pid: int) -> str:
    """Return the reason of the last check of a process, in the words of ``status``; "" without a reason."""
    if not _has_checked(pid_file):
        return AT_WORK
    from json import loads  # a yes does not need it

    check = loads(_text(f"{pid_file}.state"))
    if check["pid"] != pid:
        return ""
    problem = check["problem"]
    if problem:
        return f"last check: {check['time']}: cannot {problem['text']}; {problem['remedy']}"
    # With --restart-mode none a node is so for good.
    unasked = " or ".join(engine["name"] for engine in check["engines"] if engine["serves"] is None)
    if unasked:
        state = "serves (it was not asked, or did not answer): restart or reload it"
        return f"last check: {check['time']}: it is not known what {unasked} {state}"
    return ""


def _has_lock(pid: int, inode: int) -> bool:
    """Tell whether a process holds a lock of its own on an inode."""
    # Not /proc/locks: any user can make that table so long that no probe ends in time.
    directory = f"/proc/{pid}/fdinfo"
    for name in os.listdir(directory):
        for line in _text(f"{directory}/{name}").splitlines():
            if not line.startswith("lock:"):
                continue
            # lock: 1: FLOCK ADVISORY WRITE 4711 00:19:1234 0 EOF
            fields = line.split()
            if fields[2:6:3] == ["FLOCK", str(pid)] and fields[6].endswith(f":{inode}"):
                return True
    return False


def _text(path: str) -> str:
    """Return the text of a file, as far as a probe reads it."""
    with open(path, "rb") as file:
        return file.read(MOST_BYTES).decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
