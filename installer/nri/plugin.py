"""The process of the NRI plugin: one socket, one thread, answers from memory.

A restarted engine creates containers at once, and a container that is created without the plugin gets no
device, without an error. So the plugin dials an engine that has gone all the time, and is back within a tenth
of a second. Containers that it has missed nevertheless are named in the log and in a file for ``status``.
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

# An engine that has gone, or has a new socket, is dialled often for as long as a restart takes. Later only
# the socket is looked at: an engine that starts makes a new one.
SOON_S: Final = 0.005
SOON_FOR_S: Final = 5.0
LATER_S: Final = 0.05
LATEST_S: Final = 0.25
GROWS: Final = 40.0  # after ten seconds more an engine is looked for every LATEST_S
DIAL_S: Final = 2.0  # between two calls of the same socket, or without a socket
WATCH_S: Final = 2.0  # the interval of checks of lock and state, by which ``run`` sees that the plugin lives
REGISTER_S: Final = 10.0  # engines give up after 5
SEND_S: Final = 2.0  # engines wait no longer for an answer
PAUSE_S: Final = 0.5  # before the next connection with an engine that has closed the last one early
STEADY_S: Final = 1.0  # a shorter connection was closed early
AGAIN_S: Final = (
    60.0  # a refusal is logged again after this time: a kubelet tries a container again and again
)
REMEMBERED: Final = 256  # refusals
NAMED: Final = 20  # missed containers in the log
LISTED: Final = 100  # missed containers in the state
_PEER: Final = struct.Struct("3i")
READ_BYTES: Final = 1 << 16
_LOST: Final = "the engine has closed the connection: it stops, or an answer of ours came too late"


class Place(NamedTuple):
    """The engine's socket, and beside the socket the state for ``status`` and the plugin's lock."""

    socket: str
    state: str
    lock: str
    lock_fd: str  # the open lock


def main(words: Sequence[str]) -> int:
    """Serve until stopped.

    Args:
        words: the four fields of the place, the log format, the name, the index, the allowed namespaces.
    """
    place = Place(*words[:4])
    log_format = words[4]
    identity = Identity(words[5], words[6])
    log.write = writer(readable=log_format == "text" or (log_format == "auto" and os.isatty(2)))

    def open_session() -> Session:
        return Session(identity, tuple(map(Allowed.of, words[7:])))

    plugin = Plugin(place, open_session)
    try:
        plugin.serve()
    except InstallerError as error:
        if not isinstance(error, LockedError):  # else the state belongs to another plugin
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
    """A wait for a ready socket, for a signal to stop, or for a time."""

    def __init__(self) -> None:
        self.stopping = False
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in STOP:
            signal.signal(number, _ignore_signal)  # the pipe wakes the wait
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)

    def wait(self, fd: int | None, timeout_s: float) -> bool:
        """Tell whether ``fd`` is ready; False if the time ends first, or a signal comes."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLIN)
        ready = [each for each, _ in poll.poll(max(0.0, timeout_s) * 1000)]
        if self._read in ready:
            self.stopping = True
        return fd in ready


def _ignore_signal(_number: int, _frame: object) -> None:
    """Handle a signal without an act."""


class Plugin:
    """The plugin from one connection to the next."""

    def __init__(self, place: Place, session: Callable[[], Session]) -> None:
        self._place = place
        self._waiting = Waiting()
        self._session = session
        self._lock = HeldLock(place.lock, int(place.lock_fd), os.O_RDWR | os.O_CREAT)
        self._state = UNSEEN
        self._refused: dict[str, float] = {}
        self._engine = ""
        self._socket_id: tuple[int, ...] = ()

    def serve(self) -> None:
        """Serve each engine that listens until a signal to stop.

        Raises:
            InstallerError: the engine would drop devices.
            LockedError: another process holds the lock.
        """
        self.tell_state(UNSEEN | {"problem": "it waits for the engine"})
        pause_s = 0.0
        while (connection := self._connect(pause_s)) is not None:
            began_s = time.monotonic()
            with closing(connection):
                served = self._serve_connection(connection)
            pause_s = PAUSE_S
            if served and time.monotonic() - began_s >= STEADY_S:
                pause_s = 0.0

    def tell_state(self, state: PluginState) -> None:
        """Write the state for ``status``; a failure is logged and does not end the plugin."""
        self._state = state | {"since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        try:
            publish(self._place.state, self._state)
        except OSError as error:
            log.warning("NRI plugin state not written", path=self._place.state, reason=error.strerror)

    def _connect(self, pause_s: float) -> socket.socket | None:
        """Return the next connection with an engine; None for a stop."""
        # The pause is for an engine that has closed the last connection early, not for the next engine: an
        # engine that stops may accept a connection in its last moment.
        dial_s = time.monotonic() + pause_s
        soon_until_s = dial_s + SOON_FOR_S
        while not self._waiting.stopping:
            now_s = time.monotonic()
            socket_id = self._identify_socket()
            if socket_id and socket_id != self._socket_id:
                self._socket_id = socket_id
                dial_s = now_s
                soon_until_s = now_s + SOON_FOR_S

            if now_s >= dial_s:
                self._watch()
                try:
                    return self._dial()
                except OSError as error:
                    if isinstance(error, PermissionError):
                        self._note(f"{self._place.socket} cannot be used ({error.strerror or error})")
                if now_s >= soon_until_s:
                    dial_s = now_s + DIAL_S
            look_s = SOON_S
            if now_s >= soon_until_s:
                look_s = min(max(LATER_S, (now_s - soon_until_s) / GROWS), LATEST_S)
            self._waiting.wait(None, look_s)
        return None

    def _watch(self) -> None:
        """Restore a missing lock and a missing state.

        Raises:
            LockedError: another process holds the lock.
        """
        renewed = self._lock.renew()
        if renewed is None:
            remedy = "remove no pidfile of a plugin that runs"
            raise LockedError(f"go on (another instance holds {self._place.lock})", remedy=remedy)
        if renewed:
            os.ftruncate(self._lock.fd, 0)
            os.pwrite(self._lock.fd, f"{os.getpid()}\n".encode(), 0)
            log.warning("lock file restored", path=self._place.lock)
        with suppress(OSError):
            if not os.path.lexists(self._place.state):
                publish(self._place.state, self._state)

    def _dial(self) -> socket.socket:
        """Return a connection; raise OSError for none, or for a socket of another user than root."""
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

    def _identify_socket(self) -> tuple[int, ...]:
        """Return the identity of the present socket, () for none; with its time, for inodes come again."""
        with suppress(OSError):
            status = os.stat(self._place.socket)  # noqa: PTH116 - twenty times a second
            return status.st_dev, status.st_ino, status.st_ctime_ns
        return ()

    def _serve_connection(self, connection: socket.socket) -> bool:
        """Talk until the connection ends; tell whether the engine had registered the plugin."""
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
        """Answer each message until the connection ends, or a stop comes."""
        due_s = time.monotonic() + REGISTER_S
        connection.sendall(session.opening())
        while not self._waiting.stopping:
            timeout_s = WATCH_S if session.registered else due_s - time.monotonic()
            ready = self._waiting.wait(connection.fileno(), timeout_s)
            if not session.registered and time.monotonic() > due_s:
                raise TimeoutError(None, "it has not registered us in time")
            if not ready:
                self._watch()
                continue
            content = connection.recv(READ_BYTES)
            if not content:
                return
            for reply, news in session.hear(content):
                connection.sendall(reply)  # before the report, for the whole node waits for the reply
                self._report(news)

    def _report(self, news: object) -> None:
        """Log the news of a connection, and write the state."""
        match news:
            case Configured(engine, version):
                self._engine = f"{engine} {version}"
            case Synchronized(missed):
                # The state comes before the event: a reader of the event finds the same in the file.
                registered: PluginState = UNSEEN | {"registered": True, "engine": self._engine}
                self.tell_state(registered | {"missed": missed[:LISTED], "missed_in_all": len(missed)})
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
        """Tell whether a refusal was not logged within the last minute, and remember the refusal."""
        now_s = time.monotonic()
        if now_s - self._refused.get(text, -AGAIN_S) < AGAIN_S:
            return False
        if len(self._refused) >= REMEMBERED:
            self._refused.clear()
        self._refused[text] = now_s
        return True

    def _note(self, problem: str) -> None:
        """Log once that the plugin is not registered, with the reason."""
        if problem != self._state["problem"]:
            log.warning("NRI plugin not registered", engine=self._engine, reason=problem)
            self.tell_state(UNSEEN | {"engine": self._engine, "problem": problem})


def refuse_stranger(connection: socket.socket) -> None:
    """Refuse a socket of another user than root, who must not decide about the devices of containers.

    Raises:
        PermissionError: another user listens.
    """
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    if uid not in trusted_uids():
        raise PermissionError(None, f"it is held by user {uid}, not by root")


def publish(path: str, state: PluginState) -> None:
    """Replace the state in the file at ``path``.

    Raises:
        OSError: the file cannot be written.
    """
    content = json.dumps(state).encode() + b"\n"
    staged = f"{path}.new"
    # Only root may write in this directory; its file system is in memory, so that there is nothing to sync.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(staged, flags, 0o644), "wb") as file:
        file.write(content)
    Path(staged).replace(path)
