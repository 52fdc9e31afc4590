"""Processes: the kernel proves which process answers on a socket, and only that process is ever signalled.

Of the other processes on the host only root's are looked at, with the programs that they run.
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
LOOK_S: Final = 2.0  # of our own processor time, for all processes together: a node may run ten thousands
TOO_MANY: Final = f"not all processes can be looked at within {LOOK_S:g} s"
READ_BYTES: Final = 64 << 20
DELETED: Final = " (deleted)"
INOTIFY: Final = "anon_inode:inotify"
_PROC = Path("/proc")
_MONITORS = ("containerd-shim", "conmon")  # the beginning of comm
_UCRED = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_SERVICE = re.compile(r"(.*/[^/]+\.service)((?:/.*)?)$")
# Below slices alone: the service of a container's systemd is below the scope or the service of the container.
_HOST_SERVICE = re.compile(r"(?:/\.\.)*/(?:[^/]+\.slice/)*[^/]+\.service")
_CONTAINER = re.compile(r"/kubepods|\.scope(/|$)|:")  # k8s; systemd driver; cgroupfs path with systemd's name


class Peer(Struct, frozen=True):
    """The process answering on a socket."""

    pid: int
    name: str  # comm
    exe: str | None  # the program, in the process's own mount namespace; None without the right to look
    cmdline: tuple[str, ...]
    unit: str | None  # the systemd service with the process in its cgroup
    # Seconds from boot to the start: no step of the clock changes them, so they tell a process from a later
    # process with the same pid.
    started: float


class Unseen(Struct, frozen=True):
    """A process of an invisible pid namespace answers: its unit must do instead."""


class Silent(Struct, frozen=True):
    """A process listens, but has not answered; ``reason`` tells the failure."""

    reason: str


class NotServing(Struct, frozen=True):
    """Nothing listens: the socket is missing, or its process is gone."""


def peer_of(
    socket_path: Path, *, proc: Path = _PROC, greeting: bytes, timeout_s: float
) -> Peer | Unseen | Silent | NotServing:
    """Return the process that answers ``greeting`` on a unix socket.

    Only a process of root's is believed: its command line decides about the files to write.

    Raises:
        InstallerError: this process may not connect to the socket.
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
        except (TimeoutError, BlockingIOError):  # EAGAIN: the backlog of the socket is full
            return Silent(f"no answer within {timeout_s:g} s")
        except (ConnectionResetError, BrokenPipeError):
            return Silent("the connection was closed without an answer")
        except OSError as error:
            problem = f"connect to {socket_path} ({error.strerror or error})"
            remedy = "check the path and run as root with that socket mounted"
            raise InstallerError(problem, remedy=remedy, code="engine-not-answering") from error
    if not answer:
        return Silent("the connection was closed without an answer")
    pid = 0
    uid = -1
    # The credentials of the answer: SO_PEERCRED has those of listen(2), under socket activation systemd's.
    credentials = [content for _, kind, content in ancillary if kind == socket.SCM_CREDENTIALS]
    if credentials:
        pid, uid, _ = _UCRED.unpack_from(credentials[0])
    if uid not in trusted_uids():
        return Silent(f"a process of uid {uid} answers, and only one of root is believed to be an engine")
    return _describe(pid, proc) or Unseen()


def signal(peer: Peer, number: signals.Signals, *, expected: frozenset[str], proc: Path = _PROC) -> None:
    """Send a signal to the process that has answered.

    Args:
        peer: the process.
        number: the signal.
        expected: the names that the process may have.
        proc: the kernel's /proc.

    Raises:
        InstallerError: the process is gone, has another name, or may not be signalled.
    """
    if peer.pid <= 1:  # kill(0) is our own process group, and 1 is init (or this process)
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
    """Signal a process, unless ``prove`` raises because the pid belongs to another process by now."""
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
    """Return the innermost systemd service in a text of /proc/PID/cgroup; None without a service."""
    return _service_in(cgroup).rpartition("/")[2] or None


def _service_in(cgroup: str) -> str:
    """Return the cgroup of the innermost systemd service; "" without a service."""
    paths: dict[str, str] = {}
    for line in cgroup.split("\n"):  # a name may have any other byte
        fields = line.split(":", 2)
        if len(fields) == 3:  # noqa: PLR2004 - id:controllers:path
            _, controllers, path = fields
            paths[controllers] = path
    for hierarchy in ("name=systemd", ""):  # v1 (and hybrid), v2
        match = _SERVICE.match(paths.get(hierarchy, ""))
        if match is not None:
            service, below = match.groups()
            # Engines that do not use systemd's cgroups hang containers below their own.
            return "" if _CONTAINER.search(below) else service
    return ""


def unit_of(pid: int, proc: Path) -> str:
    """Return the systemd service of a process; "" without a service."""
    with suppress(OSError):
        return unit_in(read_proc(proc / f"{pid}/cgroup")) or ""
    return ""


def monitors_in_unit_of(process: Path) -> int:
    """Count the shims and conmons in a process's service: a stop of the service may end them.

    Raises:
        UnfinishedError: the look at all processes takes longer than ``LOOK_S``.
    """
    service = _service_of(process)
    if not service:
        return 0
    count = 0
    for other in _list_owned_by_root(process.parent):
        with suppress(OSError):  # the other process has ended
            name = read_proc(other / "comm")
            is_monitor = name.startswith(_MONITORS) and _service_in(read_proc(other / "cgroup")) == service
            if is_monitor and not _is_call_in_flight(other, name, process):
                count += 1
    return count


def _service_of(process: Path) -> str:
    """Return the cgroup of the service of a process; "" without a service, or if unknown."""
    with suppress(OSError):
        return _service_in(read_proc(process / "cgroup"))
    return ""


def _is_call_in_flight(monitor: Path, name: str, engine: Path) -> bool:
    """Tell whether a monitor is a conmon without a container (engine-facts.md#crio-conmon)."""
    if not name.startswith("conmon"):
        return False
    # The conmon of an exec has -e. The conmon of a container that is not made yet is the engine's child.
    return "-e" in _command_line(monitor) or _fields(monitor)[1] == engine.name


def list_words_in_unit_of(process: Path) -> Iterator[tuple[str, ...]]:
    """Yield the command lines of all processes in the service of a process, a directory of /proc.

    Raises:
        UnfinishedError: the look at all processes takes longer than ``LOOK_S``.
    """
    service = _service_of(process)
    if not service:
        return
    for other in list_in_time(process.parent):  # a unit may run its client as any user
        with suppress(OSError):  # the other process has ended
            if _service_in(read_proc(other / "cgroup")) == service:
                yield _command_line(other)


def words_of(process: Path) -> tuple[str, ...]:
    """Return the command line of a process, a directory of /proc; empty if ended, or for a too long line."""
    with suppress(OSError):
        return _command_line(process)
    return ()


def read_monitor(host: Host, pid: int) -> tuple[str, ...]:
    """Return the command line of a shim or conmon; empty for any other process."""
    process = host.local_path(PROC) / str(pid)
    with suppress(OSError):
        if _name(process).startswith(_MONITORS):
            return words_of(process)
    return ()


def read_parent_monitor(host: Host, pid: int) -> tuple[str, ...]:
    """Return the command line of the shim or conmon that is the parent of a process; empty for any other."""
    with suppress(OSError, IndexError, ValueError):
        return read_monitor(host, int(_fields(host.local_path(PROC) / str(pid))[1]))
    return ()


def _describe(pid: int, proc: Path) -> Peer | None:
    """Describe a process of our pid namespace; None in another namespace, or if the process has ended."""
    process = proc / str(pid)
    with suppress(OSError):  # the process has ended
        # A /proc of another namespace (the host's, mounted) has other processes under our numbers.
        if pid > 0 and int((proc / "self").readlink().name) == os.getpid():
            unit = unit_in(read_proc(process / "cgroup"))
            exe = _link(process / "exe").removesuffix(DELETED) or None  # deleted: upgraded at run time
            started = started_of(pid, proc)
            if started is not None:
                return Peer(pid, _name(process), exe, _command_line(process), unit, started)
    return None


def started_of(pid: int, proc: Path) -> float | None:
    """Return the start of a process, as in Peer; None if the process has ended."""
    with suppress(OSError, IndexError, ValueError, OverflowError):
        fields = _fields(proc / str(pid))
        state = fields[0]
        if state not in "ZX":
            return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return None


def start_time_of(pid: int, proc: Path = _PROC) -> float | None:
    """Return the start of a process by the wall clock, as for files; None if the process has ended."""
    started = started_of(pid, proc)
    if started is None:
        return None
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot_s + started


def _fields(process: Path) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: the second may hold blanks and parentheses."""
    return read_proc(process / "stat").rpartition(")")[2].split()


def _name(process: Path) -> str:
    return read_proc(process / "comm").removesuffix("\n")


def _command_line(process: Path) -> tuple[str, ...]:
    return read_strings(process / "cmdline")


def read_strings(here: Path) -> tuple[str, ...]:
    """Return the strings of a file of /proc, each up to a zero byte; raise OSError if unreadable."""
    text = read_proc(here)
    if not text:
        return ()
    return tuple(text.removesuffix("\0").split("\0"))


def _link(link: Path) -> str:
    """Return the text of a link of /proc, not always a path; "" without the right to look."""
    with suppress(OSError):
        return os.readlink(link)  # noqa: PTH115 - the text counts
    return ""


class HostProcess(Struct, frozen=True):
    """A process of the host."""

    pid: int
    name: str
    program: str  # "" without the right to read the link, for which a container needs CAP_SYS_PTRACE
    deleted: bool
    # Device and inode tell the host's programs from each other, even at one path; (0, 0): not the host's.
    file: tuple[int, int]
    # Whether the program may be started: it lies on the host's files, and only root can have written it.
    of_host: bool


def can_see_host(host: Host) -> bool:
    """Tell whether the host's processes are visible: the first process, or the kernel's threads."""
    for pid in (1, 2):
        name = text(host, PROC / f"{pid}/comm").removesuffix("\n")
        if name in {"systemd", "init", "kthreadd"}:
            return True
    return False


class UnfinishedError(Exception):
    """The time was too short for a look at all processes: the programs of the others are not known."""


def list_root_processes(host: Host, *, unread: bool = False) -> Iterator[HostProcess]:
    """Yield root's processes without kernel threads; ``unread`` adds processes with an unreadable program.

    Raises:
        UnfinishedError: the look at all processes takes longer than ``LOOK_S``.
    """
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
        except OSError:  # the process has ended, or is a thread of the kernel's
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


def list_host_processes(host: Host, names: frozenset[str]) -> Iterator[HostProcess]:
    """Yield root's processes among the host's files, if their name, or their program's name, is in ``names``.

    A process that is unreadable, or has a mount namespace of its own (PrivateTmp=), is the host's if it is in
    a service below slices alone.

    Raises:
        UnfinishedError: the look at all processes takes longer than ``LOOK_S``.
    """
    proc = host.local_path(PROC)
    init = _link(proc / "1/ns/mnt")
    # Whatever is cheap comes first: a tenant may run any number of processes, of any name.
    for process in _list_owned_by_root(proc):
        program = _link(process / "exe")
        is_among_hosts = bool(program) and _link(process / "ns/mnt") == init
        try:
            name = _name(process)
            if names.isdisjoint((name, PurePosixPath(program.removesuffix(DELETED)).name)):
                continue
            if _fields(process)[0] in "ZX":  # it has ended, and nobody has asked how
                continue
            if not is_among_hosts and not _HOST_SERVICE.fullmatch(_service_in(read_proc(process / "cgroup"))):
                continue
            # A service may have a root of its own, too (RootDirectory=).
            has_own_mounts = program and not is_among_hosts
            if has_own_mounts and not os.path.samestat((process / "root").stat(), (proc / "1/root").stat()):
                continue
            of_host = not program or (init != "" and _is_roots_alone((process / "exe").stat()))
        except OSError:  # it ended meanwhile
            continue
        pid = int(process.name)
        if is_roots(pid, proc):
            is_deleted = program.endswith(DELETED)
            yield HostProcess(pid, name, program.removesuffix(DELETED), is_deleted, (0, 0), of_host=of_host)


def read_command_line(host: Host, process: HostProcess) -> tuple[str, ...]:
    """Return the command line of a process; empty for an ended process, or a too long line.

    Ask only for a process with a known name and known files: the kernel reads the process's memory, with
    contents and delays arranged by the process.
    """
    return words_of(host.local_path(PROC) / str(process.pid))


def program_holds(host: Host, pid: int, mark: bytes) -> bool:
    """Tell whether the first 64 MB of a process's program contain ``mark``."""
    with (
        suppress(OSError, ValueError),
        (host.local_path(PROC) / f"{pid}/exe").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content.find(mark, 0, READ_BYTES) >= 0
    return False


def inotify_instances(host: Host) -> int:
    """Count the inotify instances of root's processes; all of them share a single limit.

    With too many processes, only the first processes are counted.
    """
    count = 0
    with suppress(UnfinishedError):
        for process in _list_of_root(host.local_path(PROC)):
            count += sum(file == INOTIFY for file in list_open_files(process))
    return count


def _list_of_root(proc: Path) -> Iterator[Path]:
    """Yield root's processes; raise UnfinishedError after more than ``LOOK_S``."""
    for process in _list_owned_by_root(proc):
        if is_roots(int(process.name), proc):
            yield process


def _list_owned_by_root(proc: Path) -> Iterator[Path]:
    """Yield the processes with a directory of root's: root's own, and processes closed to tracing."""
    trusted = trusted_uids()
    for process in list_in_time(proc):
        # Other users may run any number of processes: their owner costs a third of their status.
        with suppress(OSError):  # it ended meanwhile
            if process.stat().st_uid in trusted:
                yield process


def list_in_time(proc: Path) -> Iterator[Path]:
    """Yield all processes, directories of ``proc``; raise UnfinishedError after more than ``LOOK_S``."""
    # What others compute meanwhile does not count: their number alone would decide what is seen.
    most_s = time.process_time() + LOOK_S
    for pid in list_pids(proc):
        if time.process_time() > most_s:
            raise UnfinishedError
        yield proc / str(pid)


def is_written_by_root(host: Host, path: PurePosixPath) -> bool:
    """Tell whether only root can have written a program of the host."""
    with suppress(OSError):
        return _is_roots_alone(host.local_path(path).stat())
    return False


def _is_roots_alone(status: os.stat_result) -> bool:
    mode = status.st_mode
    others = mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(mode) and bool(mode & 0o111) and not others and status.st_uid in trusted_uids()
