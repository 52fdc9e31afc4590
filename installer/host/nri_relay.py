"""Named pipes at which an engine finds the plugin by way of the program that it has started itself.

That program says so with one byte, before the engine listens for plugins; and each engine start has a pair of
pipes of its own, so that no byte of an old connection gets into a new one.
"""

import os
import select
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, Self

from installer.decide.nri.wishes import HEARS, SAYS
from installer.host.glance import trusted_uids

OPEN_S: Final = 0.5  # until the program, which has just said that it is there, opens the second pipe
LOOK_S: Final = 0.001
_PEER: Final = struct.Struct("3i")


class Connection(Protocol):
    """What an engine is talked to over: bytes come from one descriptor and go to another."""

    @property
    def reads(self) -> int:
        """Where bytes come from."""

    @property
    def writes(self) -> int:
        """Where bytes go."""

    def receive(self, size: int) -> bytes:
        """Return what has come; b"" at the end."""

    def send(self, content: bytes) -> int:
        """Send what can be sent at once, and return how much that was."""

    def close(self) -> None:
        """Hang up."""


class Dialled:
    """A connection that we have made to the engine's socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.reads = self.writes = connection.fileno()

    def receive(self, size: int) -> bytes:
        """Return what has come."""
        return self._socket.recv(size)

    def send(self, content: bytes) -> int:
        """Send what can be sent at once."""
        return self._socket.send(content)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Relayed:
    """A connection over two pipes."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads, self.writes = reads, writes

    def receive(self, size: int) -> bytes:
        """Return what has come."""
        return os.read(self.reads, size)

    def send(self, content: bytes) -> int:
        """Send what can be sent at once."""
        return os.write(self.writes, content)

    def close(self) -> None:
        """Hang up: the program at the other end ends with that, and the engine sees it."""
        os.close(self.reads)
        os.close(self.writes)


class Relay:
    """The pair of pipes that waits for the next engine; ``reads`` is ready when one is there.

    Raises:
        OSError: they cannot be made.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self.reads, self._held = self._made()

    @classmethod
    def at(cls, directory: str) -> Self | None:
        """Return the pipes in a directory; None where none are asked for."""
        return cls(directory) if directory else None

    def accepted(self) -> Relayed | None:
        """Return the connection of an engine whose program is there; None where none is."""
        try:
            os.read(self.reads, 1)
        except BlockingIOError:
            return None
        until = time.monotonic() + OPEN_S
        while (writes := self._opened()) is None and time.monotonic() < until:
            time.sleep(LOOK_S)
        # One that found us taken has ended: what it said stands before what this one said. Nothing else does,
        # for an engine says nothing before a plugin has told its name.
        with suppress(BlockingIOError):
            os.read(self.reads, select.PIPE_BUF)
        connection = Relayed(self.reads, writes) if writes is not None else None
        os.close(self._held)
        if connection is None:
            os.close(self.reads)
        self.reads, self._held = self._made()
        return connection

    def renewed(self) -> bool:
        """Make the pipes anew where somebody has removed them; tell whether that was so, and is done."""
        try:
            there = os.path.samestat((self._directory / HEARS).stat(), os.fstat(self.reads))
            if there and (self._directory / SAYS).is_fifo():
                return False
        except OSError:
            pass
        held = self.reads, self._held
        try:
            self.reads, self._held = self._made()
        except OSError:  # its directory is gone, or somebody has put something else there: at the next look
            return False
        for fd in held:
            os.close(fd)
        return True

    def close(self) -> None:
        """Remove the pipes: the next program finds nobody at once."""
        os.close(self.reads)
        os.close(self._held)
        self._removed()
        with suppress(OSError):
            self._directory.rmdir()

    def _made(self) -> tuple[int, int]:
        """Return a new pipe's end for reading, and one for writing: without that it would be at its end."""
        with suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        self._removed()
        for name in (SAYS, HEARS):
            os.mkfifo(self._directory / name, 0o600)
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        path = self._directory / HEARS
        return os.open(path, os.O_RDONLY | flags), os.open(path, os.O_WRONLY | flags)

    def _removed(self) -> None:
        for name in (HEARS, SAYS):
            with suppress(FileNotFoundError):
                (self._directory / name).unlink()

    def _opened(self) -> int | None:
        """Return the second pipe as soon as the program has it open."""
        with suppress(OSError):
            return os.open(self._directory / SAYS, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return None


def refuse_stranger(connection: socket.socket) -> None:
    """Return where root listens at the other end.

    Raises:
        PermissionError: somebody else does, who is not to decide what containers get.
    """
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    if uid not in trusted_uids():
        raise PermissionError(None, f"it is held by user {uid}, not by root")
