"""Asks an engine for a sign of life while ``run`` waits: in a child of that bare interpreter, once a minute.

One that hangs keeps its process and its socket, so nothing that is watched tells of it. The first bytes that
it says are enough: whether it serves our runtimes is for the look that follows where it says none.
"""

from _socket import AF_UNIX, socket

AT_MOST_S = 10.0  # a busy machine is not a dead engine
TRIES = 2
# Of HTTP/1, and the preface of HTTP/2, which gRPC answers with its own settings (RFC 9113, 3.4).
REQUESTS = {
    "D": b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n",
    "C": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4" + bytes(5),
}


def silent(places: list[str]) -> bool:
    """Tell whether one of the engines has twice not answered.

    A place is the letter of what it speaks, and then the path of its socket.
    """
    return any(not any(_answers(place[1:], REQUESTS[place[0]]) for _ in range(TRIES)) for place in places)


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
