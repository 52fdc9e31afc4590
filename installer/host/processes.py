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
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from installer.errors import InstallerError
from installer.host.files import Host, text
from installer.host.kernel import is_roots, list_open_files, list_pids, read_proc, trusted_uids
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
_SERVICE = re.compile(r"(.*/[^/]+\.service)((?:/.*)?)$")
_CONTAINER = re.compile(r"/kubepods|\.scope(/|$)|:")  # k8s; systemd driver; cgroupfs path with systemd's name


class Peer(Struct, frozen=True):
    """The process that answers on a socket."""

    pid: int
    name: str  # its comm
    exe: str | None  # in its own mount namespace; None if we may not look
    cmdline: tuple[str, ...]
    unit: str | None  # the systemd service whose cgroup it is in
    # Seconds from boot to its start: no clock step changes that, so it tells a process from a later one with
    # the same pid.
    started: float


class Unseen(Struct, frozen=True):
    """A process answers, but in a pid namespace that we cannot see into: go by its unit."""


class Silent(Struct, frozen=True):
    """A process listens, but gave no answer; ``reason`` says what happened instead."""

    reason: str


class NotServing(Struct, frozen=True):
    """Nothing listens: there is no socket, or it was left behind by a process that is gone."""


def peer_of(
    socket_path: Path, *, proc: Path = _PROC, greeting: bytes, timeout_s: float
) -> Peer | Unseen | Silent | NotServing:
    """Return the process that answers ``greeting`` on a unix socket.

    Only a process of root's is believed: what it says it was started with decides which files are written.
    InstallerError where the socket may not be connected to.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        deadline = time.monotonic() + timeout_s
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        connection.settimeout(timeout_s)
        try:
            with connectable(socket_path) as path:
                connection.connect(path)  # under socket activation this starts the service
            connection.sendall(greeting)
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            answer, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(_UCRED.size))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return NotServing()
        except (TimeoutError, BlockingIOError):  # EAGAIN: its backlog is full
            return Silent(f"no answer within {timeout_s:g} s")
        except (ConnectionResetError, BrokenPipeError):
            return Silent("the connection was closed without an answer")
        except OSError as error:
            problem = f"connect to {socket_path} ({error.strerror or error})"
            remedy = "check the path and run as root with that socket mounted"
            raise InstallerError(problem, remedy=remedy, code="engine-not-answering") from error
    if not answer:
        return Silent("the connection was closed without an answer")
    # Those of the answer: SO_PEERCRED names who called listen(2), under socket activation systemd.
    sent = (content for _, kind, content in ancillary if kind == socket.SCM_CREDENTIALS)
    pid, uid, _ = next(map(_UCRED.unpack_from, sent), (0, -1, 0))
    if uid not in trusted_uids():
        return Silent(f"a process of uid {uid} answers, and only one of root is believed to be an engine")
    return _describe(pid, proc) or Unseen()


def signal(peer: Peer, number: signals.Signals, *, expected: frozenset[str], proc: Path = _PROC) -> None:
    """Send a signal to ``peer``, or raise InstallerError where it may not be signalled.

    Nor is it where it has gone, is another process now, or its comm is none of ``expected``.
    """
    if peer.pid <= 1:  # kill(0) is our own process group, and 1 is init (or ourselves)
        remedy = "run in the node's pid namespace (hostPID)"
        raise InstallerError(f"signal pid {peer.pid}", remedy=remedy, code="engine-not-signalled")

    def prove() -> None:
        name = _name(proc / str(peer.pid))
        if name not in expected or started_of(peer.pid, proc) != peer.started:
            problem = f"signal pid {peer.pid} ({name}, not the {' or '.join(sorted(expected))} that was seen)"
            remedy = "try again; if a proxy serves the engine's socket, name the engine's own"
            raise InstallerError(problem, remedy=remedy, code="engine-not-signalled")

    try:
        send_signal(peer.pid, number, prove)
    except OSError as error:
        problem = f"send {number.name} to {peer.name} (pid {peer.pid}: {error.strerror or error})"
        remedy = "check that it runs, and run as root in the node's pid namespace (hostPID)"
        raise InstallerError(problem, remedy=remedy, code="engine-not-signalled") from error


def send_signal(pid: int, number: signals.Signals, prove: Callable[[], None]) -> None:
    """Signal a process unless ``prove`` raises, which looks whether it is the one that is meant."""
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # a kernel before 5.3, or an old seccomp profile
            raise
        prove()
        os.kill(pid, number)
        return
    try:
        prove()  # from here on the descriptor cannot mean a later process with the same number
        signals.pidfd_send_signal(process, number)
    finally:
        os.close(process)


def unit_in(cgroup: str) -> str | None:
    """Return the systemd service that a process with this /proc/PID/cgroup is part of, the innermost one."""
    return _service_in(cgroup).rpartition("/")[2] or None


def _service_in(cgroup: str) -> str:
    """Return the cgroup of that service, "" where it is in none."""
    lines = (line.split(":", 2) for line in cgroup.split("\n"))  # a name may hold any other byte
    paths = {line[1]: line[2] for line in lines if len(line) > 2}  # noqa: PLR2004 - id:controllers:path
    for hierarchy in ("name=systemd", ""):  # v1 (and hybrid), v2
        if found := _SERVICE.match(paths.get(hierarchy, "")):
            # Engines that do not use systemd's cgroups hang containers below their own.
            return "" if _CONTAINER.search(found[2]) else found[1]
    return ""


def unit_of(pid: int, proc: Path) -> str:
    """Return the systemd service that a process is part of, "" where it is in none."""
    with suppress(OSError):
        return unit_in(read_proc(proc / f"{pid}/cgroup")) or ""
    return ""


def monitors_in_unit_of(process: Path) -> int:
    """Return how many shims and conmons are in the service of a process, whose stop may end them."""
    count = 0
    service = ""
    with suppress(OSError):
        service = _service_in(read_proc(process / "cgroup"))
    for other in (process.with_name(str(pid)) for pid in list_pids(process.parent) if service):
        with suppress(OSError):  # it ended meanwhile
            name = read_proc(other / "comm")
            if name.startswith(_MONITORS) and _service_in(read_proc(other / "cgroup")) == service:
                # A conmon of a call in flight holds no container (engine-facts.md#crio-conmon): that of an
                # exec has -e, and one whose container is not made yet is the engine's child.
                count += not name.startswith("conmon") or not (
                    "-e" in _command_line(other) or _fields(other)[1] == process.name
                )
    return count


def list_words_in_unit_of(process: Path) -> Iterator[tuple[str, ...]]:
    """Yield the command lines of all processes in the service of a process, a directory of /proc."""
    service = ""
    with suppress(OSError):
        service = _service_in(read_proc(process / "cgroup"))
    for other in (process.with_name(str(pid)) for pid in list_pids(process.parent) if service):
        with suppress(OSError):  # it ended meanwhile
            if _service_in(read_proc(other / "cgroup")) == service:
                yield _command_line(other)


def words_of(process: Path) -> tuple[str, ...]:
    """Return the command line of a process, a directory of /proc; none if it has ended, or is too long."""
    with suppress(OSError):
        return _command_line(process)
    return ()


def read_monitor(host: Host, pid: int) -> tuple[str, ...]:
    """Return the words that a shim or conmon was started with; none for any other process."""
    process = host.local_path(PROC) / str(pid)
    with suppress(OSError):
        if _name(process).startswith(_MONITORS):
            return words_of(process)
    return ()


def _describe(pid: int, proc: Path) -> Peer | None:
    """Describe a process of our pid namespace; None if ``proc`` shows another one, or the process ended."""
    process = proc / str(pid)
    with suppress(OSError):  # it ended meanwhile
        # A /proc of another namespace (the host's, mounted) has other processes under our numbers.
        if pid > 0 and int((proc / "self").readlink().name) == os.getpid():
            unit = unit_in(read_proc(process / "cgroup"))
            exe = _link(process / "exe").removesuffix(DELETED) or None  # upgraded while it runs
            started = started_of(pid, proc)
            if started is not None:
                return Peer(pid, _name(process), exe, _command_line(process), unit, started)
    return None


def started_of(pid: int, proc: Path) -> float | None:
    """Return the start of a process, as in Peer; None if it has ended."""
    with suppress(OSError, IndexError, ValueError, OverflowError):
        fields = _fields(proc / str(pid))
        return None if fields[0] in "ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return None


def start_time_of(pid: int, proc: Path = _PROC) -> float | None:
    """Return when a process was started, in seconds of the wall clock, as files have it; None if it ended."""
    started = started_of(pid, proc)
    return None if started is None else time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started


def _fields(process: Path) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: the second may hold blanks and parentheses."""
    return read_proc(process / "stat").rpartition(")")[2].split()


def _name(process: Path) -> str:
    return read_proc(process / "comm").removesuffix("\n")


def _command_line(process: Path) -> tuple[str, ...]:
    return read_strings(process / "cmdline")


def read_strings(here: Path) -> tuple[str, ...]:
    """Return the strings of a file of /proc, which zero bytes end; raise OSError if it cannot be read."""
    text = read_proc(here)
    return tuple(text.removesuffix("\0").split("\0")) if text else ()


def _link(link: Path) -> str:
    """Return what a link of /proc says, which need not be a path; "" where we may not look."""
    with suppress(OSError):
        return os.readlink(link)  # noqa: PTH115 - the text counts
    return ""


class HostProcess(Struct, frozen=True):
    """One process."""

    pid: int
    name: str
    program: str  # "" where it may not be read: a container needs CAP_SYS_PTRACE for that
    deleted: bool
    # Tells one program of the host from another, also where both had the same path; (0, 0) is any other.
    file: tuple[int, int]
    # It sees files as the host's init does, and root alone can have written its program: it may be started.
    of_host: bool


def can_see_host(host: Host) -> bool:
    """Tell whether the host's processes are in view: its first one, or the kernel's own."""
    firsts = (text(host, PROC / f"{pid}/comm").removesuffix("\n") for pid in (1, 2))
    return not {"systemd", "init", "kthreadd"}.isdisjoint(firsts)


def list_root_processes(host: Host, *, unread: bool = False) -> Iterator[HostProcess]:
    """Yield root's processes, less kernel threads; ``unread`` adds those whose program may not be read."""
    proc = host.local_path(PROC)
    init = _link(proc / "1/ns/mnt")
    for process in _list_of_root(proc):
        try:
            name = _name(process)
            program = os.readlink(process / "exe")  # noqa: PTH115 - the text counts, "(deleted)" and all
        except PermissionError:
            if not unread or started_of(int(process.name), proc) is None:
                continue
            program = ""
        except OSError:  # it ended, or is a thread of the kernel's
            continue
        file = (0, 0)
        safe = False
        # A container's program may lie on a file system that its tenant serves, or that hangs.
        if program and init != "" and _link(process / "ns/mnt") == init:
            with suppress(OSError):
                status = (process / "exe").stat()
                file = (status.st_dev, status.st_ino)
                safe = _is_roots_alone(status)
        yield HostProcess(
            int(process.name),
            name,
            program.removesuffix(DELETED),
            program.endswith(DELETED),
            file,
            of_host=safe,
        )


def read_command_line(host: Host, process: HostProcess) -> tuple[str, ...]:
    """Return the words that a process was started with; none if it has ended, or they are too long.

    Ask only for a process whose name and files are known: the kernel reads its memory, as any process may
    arrange it.
    """
    return words_of(host.local_path(PROC) / str(process.pid))


def program_holds(host: Host, pid: int, mark: bytes) -> bool:
    """Tell whether the program of a process has ``mark`` in it; only its first 64 MB are looked at."""
    with (
        suppress(OSError, ValueError),
        (host.local_path(PROC) / f"{pid}/exe").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content.find(mark, 0, READ_BYTES) >= 0
    return False


def inotify_instances(host: Host) -> int:
    """Return how many inotify instances root's processes hold: their limit is one for all of them."""
    count = 0
    for process in _list_of_root(host.local_path(PROC)):
        count += sum(file == INOTIFY for file in list_open_files(process))
    return count


def _list_of_root(proc: Path) -> Iterator[Path]:
    deadline = time.monotonic() + LOOK_S
    for pid in list_pids(proc):
        if time.monotonic() > deadline:
            return
        if is_roots(pid, proc):
            yield proc / str(pid)


def is_written_by_root(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a program of the host is one that root alone can have written."""
    with suppress(OSError):
        return _is_roots_alone(host.local_path(path).stat())
    return False


def _is_roots_alone(status: os.stat_result) -> bool:
    mode = status.st_mode
    others = mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(mode) and bool(mode & 0o111) and not others and status.st_uid in trusted_uids()
