"""One wait for all: a socket that can be read, a signal to stop, a change in a directory, or the time."""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from installer.host import signals
from installer.host.dnotify import CHANGED, notify

_AT_ONCE: Final = 64


class Wakes:
    """What wakes a process that waits for an engine; ``directory`` is that of its socket."""

    def __init__(self, directory: str) -> None:
        self.stopping = False
        self._changed = False
        self._directory = directory
        self._watched: tuple[int, os.stat_result] | None = None
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*signals.STOP, CHANGED):
            signal.signal(number, lambda *_: None)  # the pipe tells
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*signals.STOP, CHANGED))

    def watch(self) -> None:
        """See to it that changes in what has the directory's name now are told of."""
        with suppress(OSError):
            now = Path(self._directory).stat()
            if self._watched is not None and os.path.samestat(now, self._watched[1]):
                return
            if self._watched is not None:
                os.close(self._watched[0])
            fd = notify(self._directory, CHANGED)
            self._watched = None if fd is None else (fd, now)

    def changed(self) -> bool:
        """Tell, once, whether something in the directory has changed."""
        found, self._changed = self._changed, False
        return found

    def wait(self, fd: int | None, timeout_s: float | None, events: int = select.POLLIN) -> bool:
        """Return whether ``fd`` is ready; False where the time is over first, or a signal came."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if fd is not None:
            poll.register(fd, events)
        ready = [each for each, _ in poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)]
        if self._read in ready:
            came = os.read(self._read, _AT_ONCE)
            self.stopping = self.stopping or any(number in came for number in signals.STOP)
            self._changed = self._changed or CHANGED in came
        return fd in ready
