"""dnotify: the kernel sends a signal at each change in a directory, as long as the directory is held open.

It needs nothing but fcntl(2), where inotify is not in the standard library and ctypes alone costs a megabyte;
and it tells by a signal, which the NRI plugin waits for anyway.
"""

import fcntl
import os
from signal import SIGURG

CHANGED = int(SIGURG)  # a process that does not expect it ignores it, so one that comes late harms nobody


def notify(directory: str, number: int) -> int | None:
    """Have the kernel send ``number`` at each change in a directory; return what to close to end it.

    A kernel without dnotify, or a directory that cannot be opened, gives None.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, number)
        kinds = fcntl.DN_MODIFY | fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_ATTRIB
        fcntl.fcntl(fd, fcntl.F_NOTIFY, kinds | fcntl.DN_MULTISHOT)
    except OSError:
        os.close(fd)
        return None
    return fd
