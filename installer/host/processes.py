"""Processes: who answers on a socket is proven by the kernel, and only the proven one is ever signalled.

Of the others on the host, root's alone are looked at, and the programs that they run.
"""

import errno
import mmap
import os
import re
import signal as signals
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.kernel import is_roots, pids, text_of, trusted_uids
from installer.host.sockets import connectable

HTTP_PING = b"GET /_ping HTTP/1.0\r\n\r\n"
"""Makes dockerd answer."""

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""Makes a gRPC server (containerd, CRI-O) answer: the connection preface and an empty SETTINGS frame."""

PROC: Final = PurePosixPath("/proc")
LOOK_S: Final = 2.0  # at all processes together; a node may run ten thousands
READ_BYTES: Final = 64 << 20
DELETED: Final = " (deleted)"
INOTIFY: Final = "anon_inode:inotify"
_PROC = Path("/proc")
_MONITORS = ("containerd-shim", "conmon")  # what comm has of them
_UCRED = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_SERVICE = re.compile(r".*/([^/]+\.service)((?:/.*)?)$")
_CONTAINER = re.compile(r"/kubepods|\.scope(/|$)|:")  # k8s; systemd driver; cgroupfs path with systemd's name


class Peer(Struct, frozen=True):
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


class Unseen(Struct, frozen=True):
    """A process answers, but in a pid namespace that we cannot see into: go by its unit."""


class Silent(Struct, frozen=True):
    """Somebody listens, but gave no answer; ``reason`` says what happened instead."""

    reason: str


class NotServing(Struct, frozen=True):
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


def _is_monitor_in(process: Path, service: str, name: str) -> bool:
    try:
        return (
            text_of(process / "comm").startswith(_MONITORS)
            and _service_of(process) == service
            and not _is_of_a_call(process, name)
        )
    except OSError:  # it ended meanwhile
        return False


def _is_of_a_call(process: Path, name: str) -> bool:
    """Tell whether a conmon serves an exec, or a container that is not made yet, and not a live container."""
    if not text_of(process / "comm").startswith("conmon"):
        return False
    words = text_of(process / "cmdline").split("\0")
    parent = _fields(text_of(process / "stat"))[1]
    return "-e" in words or parent == name


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
        cmdline = _command_line(pid, proc)
        unit = unit_in(text_of(proc / f"{pid}/cgroup"))
    except OSError:  # it ended meanwhile
        return None
    return None if started is None else Peer(pid, name, _exe(pid, proc), cmdline, unit, started)


def started_of(pid: int, proc: Path) -> float | None:
    """Return the start of a process, as in Peer; None if it has ended."""
    try:
        text = text_of(proc / f"{pid}/stat")
        return None if _fields(text)[0] in "ZX" else started_in(text)
    except (OSError, IndexError, ValueError, OverflowError):
        return None


def started_in(text: str) -> float:
    """Return the seconds from boot to the start of the process with this /proc/PID/stat."""
    return int(_fields(text)[19]) / os.sysconf("SC_CLK_TCK")


def _fields(text: str) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: the second may hold blanks and parentheses."""
    return text.rpartition(")")[2].split()


def _name(pid: int, proc: Path) -> str:
    return text_of(proc / f"{pid}/comm").removesuffix("\n")


def _command_line(pid: int, proc: Path) -> tuple[str, ...]:
    return tuple(text_of(proc / f"{pid}/cmdline").split("\0")[:-1])


def _exe(pid: int, proc: Path) -> str | None:
    try:
        return str((proc / f"{pid}/exe").readlink()).removesuffix(DELETED)  # upgraded while it runs
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


class Seen(Struct, frozen=True):
    """One process; ``file`` tells one program from another, also where both had the same path.

    ``program`` is "" where nobody may look at it: a container needs CAP_SYS_PTRACE for that.
    ``of_host`` tells that it sees the host's files as init does, and that its program is one that root alone
    can have written: only such a program may be started.
    """

    pid: int
    name: str
    program: str
    deleted: bool
    cmdline: tuple[str, ...]
    file: tuple[int, int]
    of_host: bool


def sees_host(host: Host) -> bool:
    """Tell whether the host's processes are in view: its first one, or the kernel's own."""
    directory = host.local_path(PROC)
    with suppress(OSError):
        if text_of(directory / "2/comm") == "kthreadd\n":
            return True
    with suppress(OSError):
        return text_of(directory / "1/comm") in {"systemd\n", "init\n"}
    return False


def of_root(host: Host, *, unread: bool = False) -> Iterator[Seen]:
    """Yield root's processes, kernel threads left out.

    ``unread`` has those come as well whose program nobody may look at.
    """
    proc = host.local_path(PROC)
    init = _namespace(proc / "1")
    for directory in _roots(proc):
        pid = int(directory.name)
        try:
            name, cmdline = _name(pid, proc), _command_line(pid, proc)
        except OSError:  # it ended
            continue
        try:
            program = os.readlink(directory / "exe")  # noqa: PTH115 - the text counts, "(deleted)" and all
        except PermissionError:
            if unread and cmdline:
                yield Seen(pid, name, "", deleted=False, cmdline=cmdline, file=(0, 0), of_host=False)
            continue
        except OSError:  # it ended, or is a thread of the kernel's
            continue
        file, safe = _program(directory / "exe")
        of_host = safe and init != "" and _namespace(directory) == init
        yield Seen(
            pid, name, program.removesuffix(DELETED), program.endswith(DELETED), cmdline, file, of_host
        )


def holds(host: Host, pid: int, mark: bytes) -> bool:
    """Tell whether the program of a process has ``mark`` in it; only its first 64 MB are looked at."""
    try:
        with (host.local_path(PROC) / str(pid) / "exe").open("rb") as file:
            size = min(os.fstat(file.fileno()).st_size, READ_BYTES)
            if not size:
                return False
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
                return content.find(mark) >= 0
    except (OSError, ValueError):
        return False


def inotify_instances(host: Host) -> int:
    """Return how many inotify instances root's processes hold: their limit is one for all of them."""
    return sum(_instances(directory) for directory in _roots(host.local_path(PROC)))


def _instances(directory: Path) -> int:
    try:
        links = [entry.path for entry in os.scandir(directory / "fd")]
        return sum(os.readlink(link) == INOTIFY for link in links)  # noqa: PTH115 - the text counts
    except OSError:
        return 0


def _roots(proc: Path) -> Iterator[Path]:
    deadline = time.monotonic() + LOOK_S
    for pid in pids(proc):
        if time.monotonic() > deadline:
            return
        if is_roots(pid, proc):
            yield proc / str(pid)


def _namespace(directory: Path) -> str:
    try:
        return os.readlink(directory / "ns/mnt")  # noqa: PTH115 - the text counts
    except OSError:
        return ""


def _program(exe: Path) -> tuple[tuple[int, int], bool]:
    try:
        status = exe.stat()
    except OSError:
        return (0, 0), False
    return (status.st_dev, status.st_ino), _by_root(status)


def root_wrote(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a program of the host is one that root alone can have written."""
    try:
        return _by_root(host.local_path(path).stat())
    except OSError:
        return False


def _by_root(status: os.stat_result) -> bool:
    mode = status.st_mode
    others = mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(mode) and bool(mode & 0o111) and not others and status.st_uid in trusted_uids()
