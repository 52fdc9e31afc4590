"""How a node stood, as questions with their answers, for a later start to ask them again.

By the kernel's calls alone, with the modules of a bare interpreter: an install that changes nothing takes
no more. No answer holds what a config or an engine says: a digest tells, too, whether it is another.
"""

import posix
import sys
from _blake2 import blake2b  # what hashlib takes it from, without OpenSSL
from _socket import AF_UNIX, SO_PASSCRED, SOL_SOCKET, socket

from installer.host import unary
from installer.host.glance import PROC, mark, text_of, trusted_uids

TYPE_CHECKING = False  # as typing has it, which takes too long to load
if TYPE_CHECKING:
    from collections.abc import Callable

ASK_S = 1.0  # who is slower is asked again, with more patience, by a start that loads all
DIGEST_BYTES = 16
STARTED = 19  # of the fields of /proc/PID/stat behind comm, as proc(5) has them
OURS = b"TOOLKIT_INSTALLER"  # in the names of the variables that are read; the others are not, but for PATH
RIGHTS = ("Uid:", "Gid:", "Groups:", "CapEff:")
# What makes an engine of gRPC answer: the preface of HTTP/2 and no settings.
PREFACE = unary.PREFACE + b"\0\0\0\4" + bytes(5)
CRI = "/runtime.v1.RuntimeService/"
QUESTIONS = ((CRI + "Version", b""), (CRI + "Status", b"\x08\x01"))
CREDENTIALS_BYTES = 64
SCM_CREDENTIALS = 2
INT_BYTES = 4
# What of a unit tells how it is and how it would start (unit_start.py), by the interface that has it.
UNIT = "org.freedesktop.systemd1.Unit"
SERVICE = "org.freedesktop.systemd1.Service"
PROPERTIES = (
    *((UNIT, name) for name in ("LoadState", "ActiveState", "SubState", "CanReload", "Job", "InvocationID")),
    *((UNIT, name) for name in ("NeedDaemonReload", "Conditions", "Asserts")),
    *((UNIT, name) for name in ("RefuseManualStop", "RefuseManualStart")),
    *((SERVICE, name) for name in ("MainPID", "Result", "ExecStart", "ExecCondition", "ExecStartPre")),
    *((SERVICE, name) for name in ("Environment", "EnvironmentFiles", "RootDirectory", "RootImage")),
    (SERVICE, "KillMode"),
)
RETURNED, REFUSED = 2, 3  # kinds of messages that answer a call (the D-Bus specification)
HEADER_BYTES = 16
MAX_MESSAGE_BYTES = 1 << 20


def found(kind: str, what: str) -> str:
    """Return the answer to a question, one word.

    Raises:
        OSError, ValueError, LookupError: there is none.
    """
    return KINDS[kind](what)


def digest(*parts: bytes) -> str:
    """Return what tells these bytes from others."""
    hashed = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()


def _asked(_: str) -> str:
    """Return what this process was asked to do, and by which Python: its words, our variables, its places."""
    said = [f"{name}={value}" for name, value in variables()]
    words = [*sys.orig_argv, *sys.argv, "", *said, "", *sys.path, "", posix.getcwd(), sys.version]
    words.append(posix.uname().machine)
    return digest(*(word.encode("utf-8", "surrogateescape") for word in words))


def variables() -> list[tuple[str, str]]:
    """Return what the environment has of those that are read."""
    ours = [(name, value) for name, value in posix.environ.items() if OURS in name or name == b"PATH"]
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in sorted(ours)]


def _rights(_: str) -> str:
    """Return what this process may do, and how much of what it may take."""
    lines = [line for line in text_of(f"{PROC}/self/status").split("\n") if line.startswith(RIGHTS)]
    return digest("\n".join(lines).encode(), text_of(f"{PROC}/self/limits").encode("latin-1"))


def _text(path: str) -> str:
    """Return what a file holds: one of /proc, or a small one."""
    return digest(text_of(path).encode("latin-1"))


def _started(pid: str) -> str:
    """Return when a process was started, and by which program: another one never has both."""
    fields = text_of(f"{PROC}/{pid}/stat").rpartition(")")[2].split()
    return (
        f"{fields[STARTED]}:{digest(posix.readlink(f'{PROC}/{pid}/exe').encode('utf-8', 'surrogateescape'))}"
    )


def answerer(path: str) -> int:
    """Return the process of root's that answers on a unix socket of gRPC's, by the credentials of its words.

    Raises:
        OSError: nobody does, or not one that is believed.
    """
    connection = socket(AF_UNIX)
    try:
        connection.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        connection.settimeout(ASK_S)
        connection.connect(path)
        connection.sendall(PREFACE)
        _, control, _, _ = connection.recvmsg(1, CREDENTIALS_BYTES)
    finally:
        connection.close()
    for level, kind, content in control:
        if (level, kind) == (SOL_SOCKET, SCM_CREDENTIALS):
            pid, uid = (int.from_bytes(content[at : at + INT_BYTES], sys.byteorder) for at in (0, INT_BYTES))
            if pid > 0 and uid in trusted_uids():
                return pid
    raise PermissionError


def _cri(path: str) -> str:
    """Return who answers CRI on a socket, and what: its version, its state, all that it has in force.

    Raises:
        OSError: no answer, or not a plain one.
    """
    pid, said = answerer(path), []
    for method, request in QUESTIONS:
        message = unary.ask(path, method, request, timeout_s=ASK_S)
        if message is None:
            raise TimeoutError
        said += [b"", *sorted(fields(message))]  # a map of Go's has another order each time
    return f"{pid}:{digest(*said)}"


def fields(message: bytes) -> list[bytes]:
    """Return the fields of a protobuf message, each with its key, as they stand.

    Raises:
        ValueError, IndexError: it is none, or has fields of another kind than text, numbers and messages.
    """
    fields, at = [], 0
    while at < len(message):
        begin, (key, at) = at, unary.varint(message, at)
        size, at = unary.varint(message, at)
        if key & 7 == 2:  # noqa: PLR2004 - of a given length; else a number, which has been read
            at += size
        elif key & 7:
            raise ValueError
        if at > len(message):
            raise ValueError
        fields.append(message[begin:at])
    return fields


def _unit(what: str) -> str:
    """Return how systemd has a unit, asked on its own socket, which root alone reaches: ``SOCKET UNIT``.

    Raises:
        OSError, ValueError: it does not answer, or not in D-Bus.
    """
    path, _, unit = what.rpartition(" ")
    letters = (chr(each) if chr(each).isalnum() else f"_{each:02x}" for each in unit.encode("ascii"))
    place = "/org/freedesktop/systemd1/unit/" + "".join(letters)
    connection = socket(AF_UNIX)
    try:
        connection.settimeout(ASK_S)
        connection.connect(path)
        # All in one go, and the first message after the answer, as Bus in dbus.py does.
        connection.sendall(
            b"\0AUTH EXTERNAL " + str(posix.geteuid()).encode().hex().encode() + b"\r\nBEGIN\r\n"
        )
        if not _line(connection).startswith(b"OK "):
            raise PermissionError
        calls = [_call(number, place, *each) for number, each in enumerate(PROPERTIES, 1)]
        connection.sendall(b"".join(calls))
        return digest(*(_answer(connection) for _ in calls))
    finally:
        connection.close()


def _line(connection: socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += _exactly(1, connection)
        if len(line) > HEADER_BYTES * HEADER_BYTES:
            raise ValueError
    return line


def _padded(content: bytes, to: int) -> bytes:
    return content + bytes(-len(content) % to)


def _string(text: str) -> bytes:
    return len(text).to_bytes(4, "little") + text.encode() + b"\0"


def _call(serial: int, place: str, interface: str, name: str) -> bytes:
    """Return the call of Properties.Get as a message of D-Bus, little-endian."""
    fields = b""
    for code, kind, text in (
        (1, b"o", place),
        (2, b"s", "org.freedesktop.DBus.Properties"),
        (3, b"s", "Get"),
        (6, b"s", "org.freedesktop.systemd1"),
    ):
        fields = _padded(fields, 8) + bytes((code, 1)) + kind + b"\0" + _string(text)
    fields = _padded(fields, 8) + b"\x08\x01g\0\x02ss\0"
    body = _padded(_string(interface), 4) + _string(name)
    head = b"l\1\0\1" + b"".join(each.to_bytes(4, "little") for each in (len(body), serial, len(fields)))
    return _padded(head + fields, 8) + body


def _answer(connection: socket) -> bytes:
    """Return kind and body of the next message that answers a call: systemd keeps to their order."""
    while True:
        head = _exactly(HEADER_BYTES, connection)
        size, fields = (int.from_bytes(head[at : at + 4], "little") for at in (4, 12))
        if head[:1] != b"l" or size + fields > MAX_MESSAGE_BYTES:
            raise ValueError
        rest = _exactly(fields + -fields % 8 + size, connection)
        if head[1] in {RETURNED, REFUSED}:
            return head[1:2] + rest[len(rest) - size :]


def _exactly(size: int, connection: socket) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionResetError
        content += part
    return content


KINDS: "dict[str, Callable[[str], str]]" = {
    "asked": _asked,
    "rights": _rights,
    "mark": mark,
    "listed": lambda path: mark(path, listed=True),
    "text": _text,
    "started": _started,
    "cri": _cri,
    "unit": _unit,
}
