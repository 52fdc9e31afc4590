"""dnotify: the kernel sends a signal at each change in a directory, as long as the directory is held open.

It needs nothing but fcntl(2), where inotify is not in the standard library and ctypes alone costs a megabyte
of the six that a wait may take; and it tells by a signal, which is waited for anyway. What asks for it would
stay in memory with the wait, a quarter of a megabyte: so this script asks, and the waiter takes its place.
"""

import fcntl
import posix
import sys
from _signal import SIG_BLOCK, SIGURG, pthread_sigmask  # type: ignore[import-not-found]  # as in waiter.py

CHANGED = int(SIGURG)  # a process that does not expect it ignores it, so one that comes late harms nobody


def main(arguments: list[str]) -> int:
    """Become the waiter, which is told the descriptors that it has to hold.

    The arguments are directories, their number first, then the command of the waiter: an interpreter, two
    flags, its script and what that is told. Where it cannot be started this process waits in its place.
    """
    count = int(arguments[0]) + 1
    directories, command = arguments[1:count], arguments[count:]
    pthread_sigmask(SIG_BLOCK, [CHANGED])
    fds = [fd for directory in directories if (fd := notify(directory, CHANGED)) is not None]
    for fd in fds:
        posix.set_inheritable(fd, True)  # noqa: FBT003 - its only form
    command += map(str, fds)
    try:
        posix.execv(command[0], command)
    except OSError:
        sys.path.insert(0, __file__.rpartition("/")[0].removesuffix("/__pycache__"))
        return int(__import__("waiter").main(command[4:]))


def notify(directory: str, number: int) -> int | None:
    """Have the kernel send ``number`` at each change in a directory; return what to close to end it.

    A kernel without dnotify, or a directory that cannot be opened, gives None.
    """
    try:
        fd = posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, number)
        kinds = fcntl.DN_MODIFY | fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_ATTRIB
        fcntl.fcntl(fd, fcntl.F_NOTIFY, kinds | fcntl.DN_MULTISHOT)
    except OSError:
        posix.close(fd)
        return None
    return fd


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
