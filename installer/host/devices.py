"""What the kernel and file systems tell of devices, logs and space, each within a bound."""

import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.errors import InstallerError
from installer.host.files import READ_ONLY, Host
from installer.host.inodes import LABEL, label_of, opened
from installer.watch import lacks_room

KMSG: Final = PurePosixPath("/dev/kmsg")
RECORD_BYTES: Final = 8192  # the kernel's own limit for one record
LOG_S: Final = 0.5
LOG_LINES: Final = 20_000
KEPT_LINES: Final = 50
LINE: Final = 200


def character_devices(
    host: Host, directory: PurePosixPath, prefix: str
) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, major, minor and SELinux label of each character device whose name begins so."""
    local = host.local_path(directory)
    for name in host.names(directory):
        if not name.startswith(prefix):
            continue
        with suppress(OSError):
            device = (local / name).lstat()
            if stat.S_ISCHR(device.st_mode):
                label = (
                    dict(label_of(local / name))
                    .get(LABEL, b"")
                    .rstrip(b"\0")
                    .decode(errors="backslashreplace")
                )
                yield name, os.major(device.st_rdev), os.minor(device.st_rdev), label


def kernel_log(host: Host, words: Collection[str]) -> tuple[str, ...]:
    """Return the last lines of the kernel's log that hold one of ``words``; none where it may not be read.

    Everything that is there is read, but no longer than half a second: the kernel may be talking.
    """
    found: list[str] = []
    deadline = time.monotonic() + LOG_S
    with suppress(OSError), opened(host.local_path(KMSG), os.O_RDONLY | os.O_NONBLOCK) as fd:
        for _ in range(LOG_LINES):
            with suppress(BrokenPipeError):  # overwritten meanwhile: the next one is there
                record = os.read(fd, RECORD_BYTES)  # EAGAIN: that was the last one
                if not record or time.monotonic() > deadline:
                    break
                found += [line for line in _messages(record) if any(word in line for word in words)]
    return tuple(found[-KEPT_LINES:])


def _messages(record: bytes) -> Iterator[str]:
    for line in record.decode(errors="backslashreplace").splitlines():
        text = line.partition(";")[2] or line
        yield "".join(letter if letter.isprintable() else "?" for letter in text)[:LINE]


def is_read_only(host: Host, path: PurePosixPath) -> bool:
    """Tell whether nothing can be written at ``path``, for its file system is mounted so."""
    with suppress(InstallerError):
        return READ_ONLY in host.mounted(path)
    return False


def is_full(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a container has no room for its state at ``path``; False where there is nothing."""
    status = _file_system(host, path)
    return status is not None and lacks_room(status)


def _file_system(host: Host, path: PurePosixPath) -> os.statvfs_result | None:
    with suppress(OSError):
        return os.statvfs(host.local_path(path))
    return None


def used(host: Host, path: PurePosixPath) -> tuple[int, int] | None:
    """Return how many percent of the space and of the inodes are used where ``path`` is; -1 for no limit.

    As df(1) counts: what only root may still use is not free.
    """
    status = _file_system(host, path)
    if status is None:
        return None
    blocks = status.f_blocks - status.f_bfree
    files = status.f_files - status.f_ffree
    return _share(blocks, blocks + status.f_bavail), _share(files, files + status.f_favail)


def _share(part: int, whole: int) -> int:
    return -(-part * 100 // whole) if whole > 0 else -1
