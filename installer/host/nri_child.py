"""The NRI plugin beside a ``run`` that waits, which starts it, and starts it again when it has ended.

The waiter loads this where there is a plugin: nothing but the kernel's calls. What is known of the plugin
stands in a variable of the environment, which outlives each change of the program image.

One that hangs is ended and started again: the engine has thrown it out after two seconds, and only a new one
knows whom it has missed. It is asked by a signal, which it answers by going back to its wait: the kernel
counts that. Nothing of the plugin but its one loop can give that sign.
"""

import posix
from _signal import SIGKILL, SIGTERM, SIGURG  # type: ignore[import-not-found]  # as in waiter.py
from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded to wait
    from collections.abc import Callable, MutableMapping

PLUGIN = b"_TOOLKIT_INSTALLER_NRI"
PARENT = b"_TOOLKIT_INSTALLER_PARENT"
OWN = b"_TOOLKIT_INSTALLER_"
SEPARATOR = b"\x1f"
NEW = b"0 0 0 0 0 -1 0 -"
HUNG = b"hung"
# A minute after it has begun or given a sign it is asked for one, and as soon as the kernel tells that it was
# stopped. On a busy machine an answer takes its time.
ASK_S, ANSWER_S = 60.0, 10.0
STOPS_S = 0.1  # until one that was told to stop has
UNASKED, KILLED = -1, -2
STOPPED = 0x7F  # wait(2)
STATUS_BYTES = 8192
# The pause before the next start doubles, and is the first one again after a plugin that has lasted.
FIRST_S, LONGEST_S, STEADY_S = 0.1, 60.0, 60.0
STOP_S, LOOK_S = 5.0, 0.01
MANY_FILES = 1024  # as in waiter.py


def beside(_: bytes, __: int) -> "Callable[[list[int]], float | None]":
    """Return what keeps the plugin running, whenever it is called."""
    return Child().keep


class Child:
    """The plugin as the ``environment`` tells of it; a ``keep`` or ``stop`` is told there."""

    def __init__(self, environment: "MutableMapping[bytes, bytes]" = posix.environ) -> None:
        self._environment = environment
        said, *self._command = environment[PLUGIN].split(SEPARATOR)
        pid, began, pause, due, sign, waits, ends, self._ended = said.split()
        self._pid, self._began, self._pause_s, self._due = int(pid), float(began), float(pause), float(due)
        # When it is asked for a sign, or is to have given one; how often it had waited when it was asked.
        self._sign, self._waits, self.ends = float(sign), int(waits), int(ends)

    def keep(self, _: object = None) -> float | None:
        """Start it if it is due, or end it if it hangs; return in how many seconds there is more to do."""
        now = monotonic()
        if self._pid and self._has_ended():
            self._pid = 0
            self.ends += 1
            self._rest(now)
        if self._pid:
            self._sign_of_life(now)
        elif self._due <= now:
            self._start(now)
        self._tell()
        return max(0.0, (self._sign if self._pid else self._due) - now)

    def stop(self) -> None:
        """End it, and return when it has ended, or cannot."""
        deadline = monotonic() + STOP_S
        number = SIGTERM
        while self._pid and monotonic() < deadline + STOP_S:
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
            pid, status = posix.waitpid(self._pid, posix.WNOHANG | posix.WUNTRACED)
        except ChildProcessError:
            return True
        if pid and status & 0xFF == STOPPED:
            self._sign = monotonic() + STOPS_S if self._waits == UNASKED else self._sign
            return False
        if pid:
            self._ended = HUNG if self._waits == KILLED else b"%d" % status
        return bool(pid)

    def _sign_of_life(self, now: float) -> None:
        """Ask for a sign when it is time, and end a plugin that has given none."""
        if now < self._sign:
            return
        try:
            waits, untaken = _waits(self._pid)
            if self._waits == UNASKED:
                posix.kill(self._pid, SIGURG)
                self._waits, self._sign = waits, now + ANSWER_S
            elif self._waits == KILLED:  # and frozen: it ends before it does anything more (nri_left.py)
                self._ended, self._pid = HUNG, 0
                self.ends += 1
                self._rest(now)
            # Where this comes late both may have been held up, as by a pause of their container.
            elif self._waits == waits and now - self._sign < ANSWER_S:
                posix.kill(self._pid, SIGKILL)
                self._waits, self._sign = KILLED, now + ANSWER_S
            elif untaken:  # one whose cgroup is frozen is woken by the signal, and waits again: but once
                self._waits, self._sign = waits, now + ANSWER_S
            else:
                self._waits, self._sign = UNASKED, now + ASK_S
        except (IndexError, OSError, ValueError):  # it cannot be seen
            self._waits, self._sign = UNASKED, now + ASK_S

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
            self._waits, self._sign = UNASKED, now + ASK_S
            return
        try:
            posix.closerange(3, MANY_FILES)  # the locks are those of run alone
            others = {name: value for name, value in posix.environ.items() if not name.startswith(OWN)}
            told = b"%d %s" % (parent, self._ended)
            posix.execve(self._command[0], self._command, {**others, PARENT: told})
        finally:
            posix._exit(127)  # noqa: SLF001 - the program of the parent must not go on here

    def _tell(self) -> None:
        said = (
            f"{self._pid} {self._began} {self._pause_s} {self._due} {self._sign} {self._waits} {self.ends} "
        )
        self._environment[PLUGIN] = SEPARATOR.join([said.encode() + self._ended, *self._command])


def _waits(pid: int) -> tuple[int, int]:
    """Return how often a process has gone to wait for something, and whether SIGURG still waits for it."""
    fd = posix.open(b"/proc/%d/status" % pid, posix.O_RDONLY)
    try:
        said = posix.read(fd, STATUS_BYTES)
    finally:
        posix.close(fd)
    waits, pending = (
        said.partition(b"\n%b:" % name)[2].split()[0] for name in (b"voluntary_ctxt_switches", b"ShdPnd")
    )
    return int(waits), int(pending, 16) & 1 << SIGURG - 1
