"""Asks an engine for a sign of life while ``run`` waits: in a child of that bare interpreter, once a minute.

One that hangs keeps its process and its socket, so nothing that is watched tells of it. The first bytes that
it says are enough: whether it serves our runtimes is for the look that follows where it says none.
"""

import posix
from _socket import AF_UNIX, socket

AT_MOST_S = 10.0  # a busy machine is not a dead engine
TRIES = 2
# Of HTTP/1, and the preface of HTTP/2, which gRPC answers with its own settings (RFC 9113, 3.4).
REQUESTS = {
    "D": b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n",
    "C": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4" + bytes(5),
}


PROCESS = "P"
LISTENS = b"00010000"  # __SO_ACCEPTCON, as /proc/net/unix has it


def silent(places: list[str]) -> bool:
    """Tell whether one of the engines has twice not answered.

    A place is the letter of what it speaks, and then the path of its socket. Before a socket that systemd may
    hold, too, comes ``PROCESS`` and a directory below /proc: who asks while that stops starts it again.
    """
    process = ""
    for place in places:
        if place[0] == PROCESS:
            process = place[1:]
            continue
        if not any(
            _stops(process, place[1:]) or _answers(place[1:], REQUESTS[place[0]]) for _ in range(TRIES)
        ):
            return True
        process = ""
    return False


def _stops(process: str, path: str) -> bool:
    """Tell whether the process has closed its socket.

    dockerd does so as soon as it is told to stop (engine-facts.md#dockerd-stop).
    """
    if not process:
        return False
    ending = path[path.rindex("/") :].encode() + b"\n"
    try:
        with open(f"{process}/net/unix", "rb") as table:  # noqa: PTH123 - a bare interpreter
            rows = [row.split(None, 7) for row in table if row.endswith(ending)]
        listening = {f"socket:[{row[6].decode()}]" for row in rows if row[3] == LISTENS}
        if not listening:  # it is bound by another name, or nobody holds it any more
            return False
        return not any(_leads_to(f"{process}/fd/{fd}") in listening for fd in posix.listdir(f"{process}/fd"))
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return True
    except OSError:  # nobody can tell
        return False


def _leads_to(link: str) -> str:
    try:
        return posix.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return ""


def _answers(path: str, request: bytes) -> bool:
    client = socket(AF_UNIX)
    client.settimeout(AT_MOST_S)
    try:
        client.connect(path)
        client.send(request)
        return bool(client.recv(1))
    except OSError:  # too late, it has ended, or its queue is full
        return False
    finally:
        client.close()
