"""A host in a mount namespace of its own, with file systems as small as a test wants them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.site import Site

PAGE = os.sysconf("SC_PAGE_SIZE")


class MountedSite(Site):
    """A host in a mount namespace of its own: what is mounted there goes with it."""

    def __init__(self, directory: Path, holder: int) -> None:
        super().__init__(directory)
        self._real = self.root
        self._inside = ["nsenter", "--target", str(holder), "--mount"]
        self.root = Path(f"/proc/{holder}/root{self._real}")

    def command(self, verb: str, *more: str) -> list[str]:
        words = super().command(verb, *more)
        return [*self._inside, *(str(self._real) if word == str(self.root) else word for word in words)]

    def mount(self, path: str, *how: str) -> None:
        """Mount something over a path of the host; "." is that path itself."""
        target = str(self._real / path)
        command = [*self._inside, "mount", *(target if word == "." else word for word in how), target]
        subprocess.run(command, check=True, capture_output=True)

    def unmount(self, path: str) -> None:
        subprocess.run([*self._inside, "umount", self.path(path)], check=True, capture_output=True)

    def path(self, path: str) -> str:
        """Return where a path of the host is for a program in its mount namespace."""
        return str(self._real / path)

    def without(self, name: str) -> dict[str, str]:
        """Return the tree but for files of that name."""
        return {path: what for path, what in self.tree().items() if Path(path).name != name}


@contextmanager
def mount_namespace() -> Iterator[int]:
    """Yield the pid of a process that holds a mount namespace."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep infinity"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            yield holder.pid
        finally:
            holder.send_signal(signal.SIGKILL)


def fill(directory: Path, pages: int) -> Path:
    """Leave that many pages of a small file system free; return the file that takes the rest."""
    stuffing = directory / "stuffing"
    stuffing.touch()
    with stuffing.open("ab") as file:
        file.write(b"\0" * PAGE * (os.statvfs(directory).f_bavail - pages))
    assert os.statvfs(directory).f_bavail == pages
    return stuffing
