"""The server of metrics: prometheus_client answers with the families in a text of OpenMetrics.

One connection at a time, each with a deadline: who asks can hold up nobody but others who ask.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from socketserver import BaseServer
from threading import Timer
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric, MetricsHandler
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from installer.errors import InstallerError, Option, Remedy
from installer.host.files import Host
from installer.host.sockets import FOR_ALL, connectable, is_abandoned
from installer.model.options import Listen

BACKLOG: Final = 16
LOOK_S: Final = 1.0
AT_MOST_S: Final = 1.0


class _Text(Struct, frozen=True):
    """What is told, read anew for each who asks: the library renders it in the format that he takes."""

    path: Path

    def collect(self) -> Iterator[Metric]:
        yield from text_string_to_metric_families(self.path.read_text())  # type: ignore[no-untyped-call]


class _Handler(MetricsHandler):
    def do_GET(self) -> None:  # noqa: N802 - its name in the library
        try:
            super().do_GET()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # whoever has asked is gone
                raise
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:  # noqa: BLE001 - the library raises what it likes where nonsense is asked for
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)


def serve(host: Host, where: Listen, answer: PurePosixPath, goes_on: Callable[[], bool]) -> None:
    """Answer who asks on ``where`` with the file ``answer`` as long as it ``goes_on``.

    Raises:
        InstallerError: nobody can listen there.
    """
    registry = CollectorRegistry()
    registry.register(_Text(host.local_path(answer)))
    server = BaseServer("", _Handler.factory(registry))
    while goes_on():
        with bind(host, where) as listener:
            listener.settimeout(LOOK_S)
            # Others find us by the name of the socket, and somebody may have removed it.
            while goes_on() and (where.path is None or host.exists(where.path)):
                with suppress(OSError):  # nobody has asked, or whoever has is gone
                    connection, peer = listener.accept()
                    timer = Timer(AT_MOST_S, _end, [connection])
                    with connection:
                        timer.start()
                        server.finish_request(connection, peer)
                    timer.cancel()
    if where.path is not None:
        host.remove(where.path)


def _end(connection: socket.socket) -> None:
    """End a connection that takes too long: each wait of the handler ends then."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def bind(host: Host, where: Listen) -> socket.socket:
    """Return a socket that listens.

    Raises:
        InstallerError: there can be none.
    """
    try:
        return _listener(host, where)
    except OSError as error:
        raise InstallerError(
            f"listen on {where} ({(error.strerror or str(error)).lower()})",
            remedy=Remedy("free it, or choose another address with ", Option("metrics-listen")),
            code="name-taken",
        ) from error


def _listener(host: Host, where: Listen) -> socket.socket:
    if where.path is None:
        family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where.address, where.port))
        listener.listen(BACKLOG)
        return listener
    local = host.local_path(where.path, last=False)
    if is_abandoned(local):
        host.remove(where.path)
    listener = socket.socket(socket.AF_UNIX)
    with connectable(local) as name:
        before = os.umask(0o777 & ~FOR_ALL)  # by name somebody else's file could be opened to all
        try:
            listener.bind(name)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    return listener
