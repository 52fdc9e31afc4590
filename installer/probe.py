"""What a kubelet runs: does ``run`` live (--alive), and has it proven its engines (--ready)?

It imports nothing of ours, and takes no lock: a probe excludes no process. Where the answer is not a plain
yes, ``status`` gives it, and says what is wrong.
"""

import os
import sys

MOST_BYTES = 64 << 10


def main(words: list[str]) -> int:
    """Return 0 where the pidfile is locked by the process that it names, and readiness is of that one."""
    root = os.environ.get("TOOLKIT_INSTALLER_HOST_ROOT", "").rstrip("/")
    pid_file = os.environ.get("TOOLKIT_INSTALLER_PID_FILE") or f"{root}/run/nvidia/toolkit/toolkit.pid"
    try:
        pid, inode = int(_text(pid_file)), os.lstat(pid_file).st_ino
        # Not /proc/locks: any user can make that table so long that no probe ends in time.
        texts = (_text(f"/proc/{pid}/fdinfo/{name}") for name in os.listdir(f"/proc/{pid}/fdinfo"))
        locks = (line.split() for text in texts for line in text.splitlines() if line.startswith("lock:"))
        good = any(each[2:6:3] == ["FLOCK", str(pid)] and each[6].endswith(f":{inode}") for each in locks)
        if words == ["--ready"]:
            boot_id = _text("/proc/sys/kernel/random/boot_id").strip()
            ready = _text(os.path.join(os.path.dirname(pid_file), "ready"))
            good = good and ready.startswith(f'{{"boot_id": "{boot_id}", "pid": {pid}, ')
    except (OSError, ValueError):
        good = False
    if not good:
        os.execvp("toolkit-installer", ["toolkit-installer", "status", *words])  # noqa: S606 - no shell is meant to be there
    return 0


def _text(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES).decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
