"""The NRI plugin as a process: one socket, one thread, answers from memory, back within a tenth of a second.

An engine that is restarted creates containers before anybody may have seen it: what is created without us
gets no device, without an error. So one that has gone is dialled all the time, and what was missed all the
same is named, in the log and in a file for ``status``.
"""

import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from installer.errors import InstallerError, LockedError
from installer.host.events import log, write_termination_log, writer
from installer.host.kernel import trusted_uids
from installer.host.sockets import connectable
from installer.host.supervision import STOP
from installer.model.nri import UNSEEN, Allowed, Identity, PluginState, name_missed
from installer.nri.session import Configured, Given, RefusedError, Session, Synchronized, shorten_names
from installer.watch import HeldLock

# An engine that has gone, or whose socket is another one, is dialled so often for as long as a restart takes.
SOON_S: Final = 0.005
SOON_FOR_S: Final = 5.0
LATER_S: Final = 0.05
WATCH_S: Final = 2.0  # until lock and state are looked at again; ``run`` sees by it that we live
REGISTER_S: Final = 10.0  # engines give up after 5
SEND_S: Final = 2.0  # engines wait no longer for an answer
PAUSE_S: Final = 0.5  # before the next try with an engine that has thrown us out
STEADY_S: Final = 1.0
AGAIN_S: Final = 60.0  # kubelet tries a refused container again and again
REMEMBERED: Final = 256
NAMED: Final = 20
LISTED: Final = 100  # of missed containers, there
_PEER: Final = struct.Struct("3i")
READ_BYTES: Final = 1 << 16
_LOST: Final = "the engine has closed the connection: it stops, or an answer of ours came too late"


class Place(NamedTuple):
    """Where the engine listens, and beside it the state for ``status`` and our lock, open as ``lock_fd``."""

    socket: str
    state: str
    lock: str
    lock_fd: str


def main(words: Sequence[str]) -> int:
    """Serve until stopped; ``words`` are a place, log format, name, index, the allowed."""
    place, log_format, identity = Place(*words[:4]), words[4], Identity(words[5], words[6])
    log.write = writer(readable=log_format == "text" or (log_format == "auto" and os.isatty(2)))
    plugin = Plugin(place, lambda: Session(identity, tuple(map(Allowed.of, words[7:]))))
    try:
        plugin.serve()
    except InstallerError as error:
        if not isinstance(error, LockedError):  # the state is that of another plugin
            plugin.tell_state(UNSEEN | {"problem": str(error)})
        write_termination_log(str(error))
        log.error("failed", code=error.code, problem=f"cannot {error.problem}", remedy=str(error.remedy))
        return int(error.exit)
    log.info("NRI plugin stopped", reason="asked to")
    for path in (place.state, place.lock):
        with suppress(OSError):
            Path(path).unlink()
    return 0


class Waiting:
    """What ends a wait: a socket that is ready, a signal to stop, or the time."""

    def __init__(self) -> None:
        self.stopping = False
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in STOP:
            signal.signal(number, lambda *_: None)  # the pipe tells
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)

    def wait(self, fd: int | None, timeout_s: float) -> bool:
        """Return whether ``fd`` is ready; False where the time is over first, or a signal came."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLIN)
        ready = [each for each, _ in poll.poll(max(0.0, timeout_s) * 1000)]
        self.stopping = self.stopping or self._read in ready
        return fd in ready


class Plugin:
    """What lasts from one connection to the next."""

    def __init__(self, place: Place, session: Callable[[], Session]) -> None:
        self._place, self._waiting, self._session = place, Waiting(), session
        self._lock = HeldLock(place.lock, int(place.lock_fd), os.O_RDWR | os.O_CREAT)
        self._state = UNSEEN
        self._refused: dict[str, float] = {}
        self._engine = ""
        self._listened_at: tuple[int, ...] = ()

    def serve(self) -> None:
        """Serve each engine that listens until a signal tells to stop; raise where one has no use for us."""
        self.tell_state(UNSEEN | {"problem": "it waits for the engine"})
        pause_s = 0.0
        while (connection := self._connect(pause_s)) is not None:
            began = time.monotonic()
            with closing(connection):
                served = self._serve_connection(connection)
            pause_s = 0.0 if served and time.monotonic() - began >= STEADY_S else PAUSE_S

    def tell_state(self, state: PluginState) -> None:
        """Let ``status`` know. It must not end us that it cannot."""
        self._state = state | {"since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        try:
            publish(self._place.state, self._state)
        except OSError as error:
            log.warning("NRI plugin state not written", path=self._place.state, reason=error.strerror)

    def _connect(self, pause_s: float) -> socket.socket | None:
        """Return a connection as soon as there is one; None where a stop comes first."""
        # An engine that has thrown us out is left alone for this time, but not the one that comes after it.
        # One that stops takes a connection in its last moment, and is not the one that starts next.
        dial_at = time.monotonic() + pause_s
        soon_until = dial_at + SOON_FOR_S
        while not self._waiting.stopping:
            now, found = time.monotonic(), self._listens_at()
            if found and found != self._listened_at:
                self._listened_at, dial_at, soon_until = found, now, now + SOON_FOR_S
            if now >= dial_at:
                self._watch()
                try:
                    return self._dial()
                except OSError as error:
                    if isinstance(error, PermissionError):
                        self._note(f"{self._place.socket} cannot be used ({error.strerror or error})")
            self._waiting.wait(None, SOON_S if now < soon_until else LATER_S)
        return None

    def _watch(self) -> None:
        """See to it that lock and state are there; raise where another process holds the lock."""
        renewed = self._lock.renew()
        if renewed is None:
            remedy = "remove no pidfile of a plugin that runs"
            raise LockedError(f"go on (another instance holds {self._place.lock})", remedy=remedy)
        if renewed:
            os.ftruncate(self._lock.fd, 0)
            os.pwrite(self._lock.fd, f"{os.getpid()}\n".encode(), 0)
            log.warning("lock made again", path=self._place.lock)
        with suppress(OSError):
            if not os.path.lexists(self._place.state):
                publish(self._place.state, self._state)

    def _dial(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with connectable(Path(self._place.socket)) as path:
                connection.connect(path)
            refuse_stranger(connection)
            connection.settimeout(SEND_S)
        except BaseException:
            connection.close()
            raise
        return connection

    def _listens_at(self) -> tuple[int, ...]:
        """Return what tells this socket from those before it; an inode may come again."""
        with suppress(OSError):
            there = Path(self._place.socket).stat()
            return there.st_dev, there.st_ino, there.st_ctime_ns
        return ()

    def _serve_connection(self, connection: socket.socket) -> bool:
        """Talk until the connection ends; tell whether the engine had taken us."""
        session = self._session()
        try:
            self._talk(connection, session)
            if not self._waiting.stopping:
                self._note(_LOST)
        except InstallerError as error:
            if error.code in {"nri-unusable", "locked"}:
                raise
            self._note(str(error))
        except ConnectionError:
            self._note(_LOST)
        except OSError as error:
            self._note(f"{_LOST} ({error.strerror or error})")
        return session.registered

    def _talk(self, connection: socket.socket, session: Session) -> None:
        """Answer each message; end where the connection or we do."""
        due = time.monotonic() + REGISTER_S
        connection.sendall(session.opening())
        while not self._waiting.stopping:
            left_s = WATCH_S if session.registered else due - time.monotonic()
            ready = self._waiting.wait(connection.fileno(), left_s)
            if not session.registered and time.monotonic() > due:
                raise TimeoutError(None, "it has not registered us in time")
            if not ready:
                self._watch()
                continue
            content = connection.recv(READ_BYTES)
            if not content:
                return
            for reply, news in session.hear(content):
                connection.sendall(reply)  # all the node waits for it: telling is for later
                self._report(news)

    def _report(self, news: object) -> None:
        match news:
            case Configured(engine, version):
                self._engine = f"{engine} {version}"
            case Synchronized(missed):
                # Whoever sees the event finds the same in the file.
                seen: PluginState = UNSEEN | {"registered": True, "engine": self._engine}
                self.tell_state(seen | {"missed": missed[:LISTED], "missed_in_all": len(missed)})
                log.info("NRI plugin registered", engine=self._engine, missed=len(missed))
                if missed:
                    log.warning(
                        "containers missed",
                        containers=[*map(name_missed, missed[:NAMED])],
                        in_all=len(missed),
                        remedy="delete their pods: they run without the devices that they ask for",
                    )
            case Given(pod, container, devices):
                log.info("devices given", pod=pod, container=container, devices=shorten_names(devices))
            case RefusedError() as error:
                if self._is_news(str(error)):
                    log.warning("container refused", error=str(error), code=error.code)
            case _:
                pass

    def _is_news(self, text: str) -> bool:
        now = time.monotonic()
        if now - self._refused.get(text, -AGAIN_S) < AGAIN_S:
            return False
        if len(self._refused) >= REMEMBERED:
            self._refused.clear()
        self._refused[text] = now
        return True

    def _note(self, problem: str) -> None:
        """Tell once that we are not registered, and why."""
        if problem != self._state["problem"]:
            log.warning("NRI plugin not registered", engine=self._engine, reason=problem)
            self.tell_state(UNSEEN | {"engine": self._engine, "problem": problem})


def refuse_stranger(connection: socket.socket) -> None:
    """Raise where another user than root listens, who is not to decide what containers get."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    if uid not in trusted_uids():
        raise PermissionError(None, f"it is held by user {uid}, not by root")


def publish(path: str, state: PluginState) -> None:
    """Put a state in the place of the one before; raise OSError where that cannot be written."""
    content = json.dumps(state).encode() + b"\n"
    staged = f"{path}.new"
    # It lies where root alone may write, in a file system of memory: nothing is there to be synced.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(staged, flags, 0o644), "wb") as file:
        file.write(content)
    Path(staged).replace(path)
