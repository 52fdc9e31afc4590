"""Asks an engine for a sign of life while ``run`` waits: loaded into that bare interpreter once a minute.

One that hangs keeps its process and its socket, so nothing that is watched tells of it. The first bytes that
it says are enough: whether it serves our runtimes is for the look that follows where it says none.
"""

from _signal import sigpending  # type: ignore[import-not-found]  # signal and socket load enum and more: a megabyte
from _socket import AF_UNIX, socket
from time import monotonic

AT_MOST_S = 15.0  # a busy machine is not a dead engine
TRIES = 2
STEP_S = 0.2
# Of HTTP/1, and the preface of HTTP/2, which gRPC answers with its own settings (RFC 9113, 3.4).
REQUESTS = {
    "D": b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n",
    "C": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4" + bytes(5),
}


def silent(places: list[str], numbers: list[int]) -> bool:
    """Tell whether one of the engines has twice not answered; not where one of the signals has come.

    A place is the letter of what it speaks, and then the path of its socket.
    """
    return any(
        not any(_answers(place[1:], REQUESTS[place[0]], numbers) for _ in range(TRIES)) for place in places
    )


def _answers(path: str, request: bytes, numbers: list[int]) -> bool:
    due, client = monotonic() + AT_MOST_S, socket(AF_UNIX)
    client.settimeout(STEP_S)
    try:
        client.connect(path)
        client.send(request)
        while monotonic() < due:
            if sigpending() & {*numbers}:
                return True
            try:
                return bool(client.recv(1))
            except TimeoutError:
                continue
    except OSError:
        pass  # it has ended, or its queue is full
    finally:
        client.close()
    return False
