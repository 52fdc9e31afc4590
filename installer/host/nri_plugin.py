"""The NRI plugin as a process: one socket, one thread, answers from memory, back within a tenth of a second.

An engine that is restarted creates containers before anybody may have seen it: what is created without us
gets no device and nobody says so. So the kernel tells of a change in the socket's directory (dnotify), and
what was missed all the same is named, in the log and in a file for ``status``.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError, LockedError
from installer.decide.nri.session import Configured, Given, Refused, Session, Synchronized
from installer.decide.nri.wishes import Allowed, Identity, Missed, some
from installer.host.events import log
from installer.host.glance import trusted_uids
from installer.host.nri_lock import NamedLock
from installer.host.nri_state import State, publish
from installer.host.sockets import connectable
from installer.host.streams import writer
from installer.host.termination import leave
from installer.host.wakes import Wakes

# After a change the socket is dialled so often for so long: it has its name before the engine listens.
SOON_S: Final = 0.005
SOON_FOR_S: Final = 0.5
LATER_S: Final = 1.0  # not every file system tells of changes
REGISTER_S: Final = 10.0  # engines give up after 5
SEND_S: Final = 2.0  # engines wait no longer for an answer
PAUSE_S: Final = 0.5  # before the next try with an engine that has thrown us out
STEADY_S: Final = 1.0
AGAIN_S: Final = 60.0  # kubelet tries a refused container again and again
REMEMBERED: Final = 256
NAMED: Final = 20
_PEER: Final = struct.Struct("3i")
READ_BYTES: Final = 1 << 16
_ABANDONED: Final = "the run that had started it was killed"
_LOST: Final = "the engine has closed the connection: it stops, or an answer of ours came too late"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the engine listens, and what is beside: the state for ``status``, and our lock.

    ``parent`` is the pid of the ``run`` that has started us, "" where none has.
    """

    socket: str
    state: str
    lock: str
    parent: str = ""

    @property
    def directory(self) -> str:
        """The directory of the socket."""
        return self.socket.rpartition("/")[0] or "/"


def main(words: Sequence[str]) -> int:
    """Serve until told to stop; ``words`` are a place, log format, name, index, the allowed."""
    place, log_format, identity = Place(*words[:4]), words[4], Identity(words[5], words[6])
    log.write = writer(readable=log_format == "text" or (log_format == "auto" and os.isatty(2)))
    wakes = Wakes(place.directory)
    plugin = Plugin(place, wakes, lambda: Session(identity, tuple(map(Allowed.of, words[7:]))))
    try:
        plugin.serve()
    except InstallerError as error:
        if not isinstance(error, LockedError):  # the state is that of another plugin
            plugin.tell_state(State(problem=str(error)))
        leave(str(error))
        log.error("failed", code=error.code, problem=error.problem, remedy=str(error.remedy))
        return int(error.exit)
    abandoned = place.parent not in {"", str(os.getppid())}  # a run that stops waits for our end
    if abandoned:
        plugin.tell_state(State(problem=_ABANDONED))
    log.info("stopped", reason=_ABANDONED if abandoned else "asked to")
    for path in (place.lock,) if abandoned else (place.state, place.lock):
        with suppress(OSError):
            Path(path).unlink()
    return 0


class Plugin:
    """What lasts from one connection to the next."""

    def __init__(self, place: Place, wakes: Wakes, session: Callable[[], Session]) -> None:
        self._place, self._wakes, self._session = place, wakes, session
        self._lock = NamedLock(place.lock)
        self._state = State()
        self._refused: dict[str, float] = {}
        self._problem = ""
        self._engine = ""
        self._dialled_at: tuple[int, ...] = ()

    def serve(self) -> None:
        """Serve the engine, and each that comes after it, until a signal tells to stop.

        Raises:
            InstallerError: the engine has no use for us.
        """
        self.tell_state(State(problem="it waits for the engine"))
        while (connection := self._connected()) is not None:
            began = time.monotonic()
            with closing(connection):
                served = self._served(connection)
            if self._wakes.stopping:
                return
            if not served or time.monotonic() - began < STEADY_S:
                self._pause()

    def tell_state(self, state: State) -> None:
        """Let ``status`` know. It must not end us that it cannot."""
        self._state = state = state.now()
        try:
            publish(self._place.state, state)
        except OSError as error:
            log.warning("state not written", path=self._place.state, reason=error.strerror)

    def _connected(self) -> socket.socket | None:
        """Return a connection as soon as there is one; None where a stop comes first."""
        soon_until = time.monotonic() + SOON_FOR_S
        while not self._wakes.stopping:
            self._watch()
            try:
                return self._dialled()
            except OSError as error:
                if isinstance(error, PermissionError):
                    self._note(f"{self._place.socket} cannot be used ({error.strerror or error})")
            now = time.monotonic()
            if self._wakes.changed():
                soon_until = now + SOON_FOR_S
            self._wakes.wait(None, SOON_S if now < soon_until else LATER_S)
        return None

    def _watch(self) -> None:
        """See to it that changes are told of, and that all of ours is there: lock and state."""
        if self._lock.renewed():
            log.warning("lock made again", path=self._place.lock)
        with suppress(OSError):
            if not os.path.lexists(self._place.state):
                publish(self._place.state, self._state)
        self._wakes.watch()

    def _dialled(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._dialled_at = self._listens_at()
            with connectable(Path(self._place.socket)) as path:
                connection.connect(path)
            refuse_stranger(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _pause(self) -> None:
        """Leave an engine that has thrown us out alone for a while, but not the one that comes after it.

        One that stops takes a connection in its last moment, and is not the one that starts next.
        """
        until = time.monotonic() + PAUSE_S
        while not self._wakes.stopping and (left_s := until - time.monotonic()) > 0:
            if (now := self._listens_at()) and now != self._dialled_at:
                return
            self._wakes.wait(None, left_s)

    def _listens_at(self) -> tuple[int, ...]:
        """Return what tells this socket from those before it, whose inode it may have; () where none is."""
        try:
            found = Path(self._place.socket).stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def _served(self, connection: socket.socket) -> bool:
        """Talk until the connection ends; tell whether the engine had taken us."""
        registered = False
        try:
            for registered in self._talk(connection, self._session()):  # noqa: B007 - the last one counts
                pass
        except InstallerError as error:
            if error.code in {"nri-unusable", "locked"}:
                raise
            self._note(str(error))
        except OSError as error:
            self._note(
                _LOST if isinstance(error, ConnectionError) else f"{_LOST} ({error.strerror or error})"
            )
        else:
            if not self._wakes.stopping:
                self._note(_LOST)
        return registered

    def _talk(self, connection: socket.socket, session: Session) -> Iterator[bool]:
        """Yield after each message whether we are registered; end where the connection or we do."""
        registered, due = False, time.monotonic() + REGISTER_S
        self._send(connection, session.opening())
        while not self._wakes.stopping:
            ready = self._wakes.wait(connection.fileno(), None if registered else due - time.monotonic())
            if not registered and time.monotonic() > due:
                raise TimeoutError(None, "it has not registered us in time")
            if not ready:
                self._watch()
                continue
            content = connection.recv(READ_BYTES)
            if not content:
                return
            for turn in session.hear(content):
                self._send(connection, turn.reply)  # all the node waits for it: telling is for later
                registered = registered or isinstance(turn.news, Synchronized)
                self._tell(turn.news)
                yield registered

    def _send(self, connection: socket.socket, content: bytes) -> None:
        due = time.monotonic() + SEND_S
        while content:
            with suppress(BlockingIOError):
                content = content[connection.send(content) :]
                continue
            self._wakes.wait(connection.fileno(), due - time.monotonic(), select.POLLOUT)
            if time.monotonic() > due:
                raise TimeoutError(None, "it reads no answers")

    def _tell(self, news: object) -> None:
        match news:
            case Configured(engine, version):
                self._engine = f"{engine} {version}"
            case Synchronized(missed):
                self._problem = ""
                # Whoever sees the event finds the same in the file.
                self.tell_state(
                    State(registered=True, engine=self._engine, missed=missed, missed_in_all=len(missed))
                )
                log.info("registered", engine=self._engine, missed=len(missed))
                _tell_missed(missed)
            case Given(pod, container, devices):
                log.info("devices given", pod=pod, container=container, devices=some(devices))
            case Refused(error):
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
        if problem != self._problem:
            self._problem = problem
            log.warning("not registered", engine=self._engine, reason=problem)
            self.tell_state(State(engine=self._engine, problem=problem))


def refuse_stranger(connection: socket.socket) -> None:
    """Return where root listens at the other end.

    Raises:
        PermissionError: somebody else does, who is not to decide what containers get.
    """
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    if uid not in trusted_uids():
        raise PermissionError(None, f"it is held by user {uid}, not by root")


def _tell_missed(missed: tuple[Missed, ...]) -> None:
    if missed:
        names = [f"{each.namespace}/{each.pod}/{each.container}" for each in missed[:NAMED]]
        log.warning(
            "containers missed",
            containers=names,
            in_all=len(missed),
            remedy="delete their pods: they run without the devices that they ask for",
        )
