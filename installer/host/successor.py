"""The program image that starts our program again beside the container that it ran in, to carry on its undo.

systemd starts it in the mount namespace of that container, as a script with the arguments PID and the
command that is to be executed, with the environment of the process PID of the container.
"""

import os
import sys

MS_PRIVATE = 1 << 18  # linux/mount.h


def main(arguments: list[str]) -> None:
    """Become the command."""
    pid, *command = arguments
    with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - nothing is loaded that is not needed
        said = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    environment = {name: value for name, _, value in said}
    if not os.path.exists("/proc/self"):  # noqa: PTH110
        import ctypes

        # That /proc shows the container's processes only, and goes with them.
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mount(b"none", b"/proc", None, MS_PRIVATE, None)
        if libc.mount(b"proc", b"/proc", b"proc", 0, None):
            sys.exit(f"cannot mount /proc: {os.strerror(ctypes.get_errno())}")
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is meant to be there


if __name__ == "__main__":
    main(sys.argv[1:])
