"""Who answers on a socket is proven by the kernel, and only the proven process is ever signalled."""

import errno
import os
import re
import signal as signals
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError
from installer.host.kernel import pids, text_of, trusted_uids
from installer.host.sockets import connectable, held_by

HTTP_PING = b"GET /_ping HTTP/1.0\r\n\r\n"
"""Makes dockerd answer."""

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""Makes a gRPC server (containerd, CRI-O) answer: the connection preface and an empty SETTINGS frame."""

_PROC = Path("/proc")
_LISTENING = "00010000"  # __SO_ACCEPTCON
_MONITORS = ("containerd-shim", "conmon")  # what comm has of them
_UCRED = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_SERVICE = re.compile(r".*/([^/]+\.service)((?:/.*)?)$")
_CONTAINER = re.compile(r"/kubepods|\.scope(/|$)|:")  # k8s; systemd driver; cgroupfs path with systemd's name


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that answers on a socket.

    ``name`` is its comm, ``exe`` the path in its own mount namespace (None if we may not look), ``unit`` the
    systemd service whose cgroup it is in, ``started`` the seconds from boot to its start: no clock step
    changes it, so within one boot it tells a process from a later one with the same pid.
    """

    pid: int
    name: str
    exe: str | None
    cmdline: tuple[str, ...]
    unit: str | None
    started: float


@dataclass(frozen=True, slots=True)
class Unseen:
    """A process answers, but in a pid namespace that we cannot see into: go by its unit."""


@dataclass(frozen=True, slots=True)
class Silent:
    """Somebody listens, but gave no answer; ``reason`` says what happened instead."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotServing:
    """Nobody listens: there is no socket, or it was left behind by a process that is gone."""


def peer_of(
    socket_path: Path, *, proc: Path = _PROC, greeting: bytes, timeout_s: float
) -> Peer | Unseen | Silent | NotServing:
    """Return the process that answers ``greeting`` on a unix socket.

    The credentials are those of the answer (SCM_CREDENTIALS): the ones of the socket (SO_PEERCRED) name
    whoever called listen(2), which under socket activation is systemd. (Connecting then starts the service.)
    Only a process of root's is believed: what it says it was started with decides which files are written.

    Raises:
        InstallerError: the socket may not be connected to.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        deadline = time.monotonic() + timeout_s
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        connection.settimeout(timeout_s)
        try:
            with connectable(socket_path) as path:
                connection.connect(path)
            connection.sendall(greeting)
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            answer, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(_UCRED.size))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return NotServing()
        except (TimeoutError, BlockingIOError):  # EAGAIN: the backlog is full of connections nobody accepts
            return Silent(f"no answer within {timeout_s:g} s")
        except (ConnectionResetError, BrokenPipeError):
            return Silent("the connection was closed without an answer")
        except OSError as error:
            raise InstallerError(
                f"connect to {socket_path} ({error.strerror or error})",
                remedy="check the path and run as root with that socket mounted",
                code="engine-not-answering",
            ) from error
    if not answer:
        return Silent("the connection was closed without an answer")
    pid, uid = _sender(ancillary)
    if uid not in trusted_uids():
        return Silent(f"a process of uid {uid} answers, and only one of root is believed to be an engine")
    return _seen(pid, proc) or Unseen()


def signal(peer: Peer, number: signals.Signals, *, expected: frozenset[str], proc: Path = _PROC) -> None:
    """Send a signal to ``peer`` if it still is the process that was seen and its comm is one of ``expected``.

    Raises:
        InstallerError: it is gone, another process by now, not one of ``expected``, or may not be signalled.
    """
    if peer.pid <= 1:  # kill(0) is our own process group, and 1 is init (or ourselves)
        raise InstallerError(
            f"signal pid {peer.pid}",
            remedy="run in the node's pid namespace (hostPID)",
            code="engine-not-signalled",
        )
    try:
        with pidfd(peer.pid) as process:
            # In this order: from here on the descriptor cannot mean a later process with the same number.
            _prove(peer, expected, proc)
            if process is None:
                os.kill(peer.pid, number)
            else:
                signals.pidfd_send_signal(process, number)
    except OSError as error:
        raise InstallerError(
            f"send {number.name} to {peer.name} (pid {peer.pid}: {error.strerror or error})",
            remedy="check that it runs, and run as root in the node's pid namespace (hostPID)",
            code="engine-not-signalled",
        ) from error


def listening(process: Path) -> frozenset[str]:
    """Return the paths of the unix sockets that a process, a directory of /proc, listens on.

    None are known of one whose descriptors we may not look at.
    """
    try:
        held = held_by(process)
        lines = [line.split(None, 7) for line in text_of(process / "net/unix").split("\n")[1:]]
    except OSError:
        return frozenset()
    # number, references, protocol, flags, type, state, inode, path (net/unix/af_unix.c: unix_seq_show)
    named = [line for line in lines if len(line) > 7]  # noqa: PLR2004 - others have no path
    return frozenset(line[7] for line in named if line[3] == _LISTENING and f"socket:[{line[6]}]" in held)


def unit_in(cgroup: str) -> str | None:
    """Return the systemd service that a process with this /proc/PID/cgroup is part of, the innermost one.

    A process in a container below a service is not part of it: engines that do not use systemd's cgroups hang
    containers below their own.
    """
    lines = (line.split(":", 2) for line in cgroup.split("\n"))  # a name may hold any other byte
    paths = {line[1]: line[2] for line in lines if len(line) > 2}  # noqa: PLR2004 - id:controllers:path
    for hierarchy in ("name=systemd", ""):  # v1 (and hybrid), v2
        if found := _SERVICE.match(paths.get(hierarchy, "")):
            unit, below = found.groups()
            return None if _CONTAINER.search(below) else unit
    return None


def unit_of(pid: int, proc: Path) -> str:
    """Return the systemd service that a process is part of, "" where it is in none."""
    try:
        return unit_in(text_of(proc / f"{pid}/cgroup")) or ""
    except OSError:
        return ""


def monitors_in_unit_of(process: Path) -> int:
    """Return how many shims and conmons are in the systemd service of a process, a directory of /proc.

    A stop of the service may end them, and with them their containers; those in a scope or a pod it does not.
    A conmon that CRI-O has started for a call in flight holds no container (engine-facts.md#crio-conmon).
    """
    try:
        service = _service_of(process)
    except OSError:
        service = ""
    proc = process.parent
    return sum(_is_monitor_in(proc / str(pid), service, process.name) for pid in pids(proc) if service)


def _is_monitor_in(process: Path, service: str, engine: str) -> bool:
    try:
        return (
            text_of(process / "comm").startswith(_MONITORS)
            and _service_of(process) == service
            and not _is_of_a_call(process, engine)
        )
    except OSError:  # it ended meanwhile
        return False


def _is_of_a_call(process: Path, engine: str) -> bool:
    """Tell whether a conmon serves an exec, or a container that is not made yet, and not a live container."""
    if not text_of(process / "comm").startswith("conmon"):
        return False
    words = text_of(process / "cmdline").split("\0")
    parent = text_of(process / "stat").rpartition(")")[2].split()[1]
    return "-e" in words or parent == engine


def _service_of(process: Path) -> str:
    """Return the cgroup of the systemd service that a process is part of: a name may be there twice."""
    cgroup = text_of(process / "cgroup")
    unit = unit_in(cgroup)
    paths = [line.split(":", 2)[-1] for line in cgroup.split("\n") if unit and f"/{unit}" in line]
    return paths[-1].partition(f"/{unit}")[0] + f"/{unit}" if paths else ""


def _sender(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """Return pid and uid of whoever sent the answer; uid -1 where the kernel does not tell."""
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, uid, _ = _UCRED.unpack_from(content)
            return pid, uid
    return 0, -1


def _seen(pid: int, proc: Path) -> Peer | None:
    """Describe a process of our pid namespace; None if ``proc`` shows another one, or the process ended."""
    try:
        # A /proc of another namespace (the host's, mounted) has other processes under our numbers.
        if pid <= 0 or int((proc / "self").readlink().name) != os.getpid():
            return None
        started = started_of(pid, proc)
        name = _name(pid, proc)
        cmdline = text_of(proc / f"{pid}/cmdline")
        unit = unit_in(text_of(proc / f"{pid}/cgroup"))
    except OSError:  # it ended meanwhile
        return None
    if started is None:
        return None
    return Peer(pid, name, _exe(pid, proc), tuple(cmdline.split("\0")[:-1]), unit, started)


def started_of(pid: int, proc: Path) -> float | None:
    """Return the start of a process, as in Peer; None if it has ended."""
    try:
        stat = text_of(proc / f"{pid}/stat")
        fields = stat.rpartition(")")[2].split()  # comm may hold blanks and parentheses; then comes field 3
        return None if fields[0] in "ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError, OverflowError):
        return None


def started_in(stat: str) -> float:
    """Return the seconds from boot to the start of the process with this /proc/PID/stat."""
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def _name(pid: int, proc: Path) -> str:
    return text_of(proc / f"{pid}/comm").removesuffix("\n")


def _exe(pid: int, proc: Path) -> str | None:
    try:
        return str((proc / f"{pid}/exe").readlink()).removesuffix(" (deleted)")  # upgraded while it runs
    except OSError:
        return None


def _prove(peer: Peer, expected: frozenset[str], proc: Path) -> None:
    name = _name(peer.pid, proc)
    if name not in expected or started_of(peer.pid, proc) != peer.started:
        raise InstallerError(
            f"signal pid {peer.pid} ({name}, not the {' or '.join(sorted(expected))} that was seen)",
            remedy="try again; if a proxy serves the engine's socket, name the engine's own",
            code="engine-not-signalled",
        )


@contextmanager
def pidfd(pid: int) -> Iterator[int | None]:
    """Hold on to a process; None where the kernel (before 5.3) or an old seccomp profile has no pidfd.

    Raises:
        ProcessLookupError: it has ended.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
