"""The NRI plugin beside a ``run`` that waits, which starts it, and starts it again when it has ended.

The waiter loads this where there is a plugin: nothing but the kernel's calls. What is known of the plugin
stands in a variable of the environment, which outlives each change of the program image.
"""

import posix
from _signal import SIGKILL, SIGTERM  # type: ignore[import-not-found]  # as in waiter.py
from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded to wait
    from collections.abc import Callable

PLUGIN = b"_TOOLKIT_INSTALLER_NRI"
PARENT = b"_TOOLKIT_INSTALLER_PARENT"
OWN = b"_TOOLKIT_INSTALLER_"
SEPARATOR = b"\x1f"
NEW = b"0 0 0 0 -"
# The pause before the next start doubles, and is the first one again after a plugin that has lasted.
FIRST_S, LONGEST_S, STEADY_S = 0.1, 60.0, 60.0
STOP_S, LOOK_S = 5.0, 0.01
MANY_FILES = 1024  # as in waiter.py


def beside(_: bytes, __: int) -> "Callable[[list[int]], float | None]":
    """Return what keeps the plugin running, whenever it is called."""
    return Child().keep


class Child:
    """The plugin as the ``environment`` tells of it; a ``keep`` or ``stop`` is told there."""

    def __init__(self, environment: dict[bytes, bytes] = posix.environ) -> None:
        self._environment = environment
        said, *self._command = environment[PLUGIN].split(SEPARATOR)
        pid, began, pause, due, self._ended = said.split()
        self._pid, self._began, self._pause_s, self._due = int(pid), float(began), float(pause), float(due)

    def keep(self, _: object = None) -> float | None:
        """Start it if it is due; return in how many seconds it will be, None while it runs."""
        now = monotonic()
        if self._pid:
            if not self._has_ended():
                return None
            self._pid = 0
            self._rest(now)
        if self._due <= now:
            self._start(now)
        self._tell()
        return None if self._pid else max(0.0, self._due - now)

    def stop(self) -> None:
        """End it, and return when it has ended."""
        deadline = monotonic() + STOP_S
        number = SIGTERM
        while self._pid:
            posix.kill(self._pid, number)  # ours until it is waited for: nobody else gets its number
            number = 0
            if self._has_ended():
                self._pid = 0
            elif monotonic() > deadline:
                number = SIGKILL
            sleep(LOOK_S if self._pid else 0)
        self._tell()

    def _has_ended(self) -> bool:
        try:
            pid, status = posix.waitpid(self._pid, posix.WNOHANG)
        except ChildProcessError:
            return True
        if pid:
            self._ended = b"%d" % status
        return bool(pid)

    def _rest(self, now: float) -> None:
        lasted = now - self._began >= STEADY_S
        self._pause_s = FIRST_S if lasted else min(2 * self._pause_s or FIRST_S, LONGEST_S)
        self._due = now + self._pause_s

    def _start(self, now: float) -> None:
        parent = posix.getpid()
        try:
            pid = posix.fork()
        except OSError:  # no memory, no room for one more process
            self._rest(now)
            return
        if pid:
            self._pid, self._began = pid, now
            return
        try:
            posix.closerange(3, MANY_FILES)  # the locks are those of run alone
            others = {name: value for name, value in posix.environ.items() if not name.startswith(OWN)}
            told = b"%d %s" % (parent, self._ended)
            posix.execve(self._command[0], self._command, {**others, PARENT: told})
        finally:
            posix._exit(127)  # noqa: SLF001 - the program of the parent must not go on here

    def _tell(self) -> None:
        said = f"{self._pid} {self._began} {self._pause_s} {self._due}".encode() + b" " + self._ended
        self._environment[PLUGIN] = SEPARATOR.join([said, *self._command])
