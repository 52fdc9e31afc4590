"""One wait for all: a socket that can be read, a signal to stop, a change in directories, or the time."""

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
    """What wakes a process that waits for an engine; ``directories`` are those of its socket and of pipes."""

    def __init__(self, *directories: str) -> None:
        self.stopping = False
        self._changed = False
        self._directories = directories
        self._watched: dict[str, tuple[int, os.stat_result]] = {}
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*signals.STOP, CHANGED):
            signal.signal(number, lambda *_: None)  # the pipe tells
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*signals.STOP, CHANGED))

    def watch(self) -> None:
        """See to it that changes in what has the directories' names now are told of."""
        for directory in self._directories:
            with suppress(OSError):
                self._watch(directory)

    def _watch(self, directory: str) -> None:
        now, (fd, before) = Path(directory).stat(), self._watched.get(directory, (None, None))
        if before is not None and os.path.samestat(now, before):
            return
        if fd is not None:
            os.close(fd)
        self._watched.pop(directory, None)
        if (fd := notify(directory, CHANGED)) is not None:
            self._watched[directory] = (fd, now)

    def changed(self) -> bool:
        """Tell, once, whether something in the directories has changed."""
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
