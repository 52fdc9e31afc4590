"""The server of metrics: many connections at a time, each of a second at most."""

from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from socketserver import BaseServer
from threading import BoundedSemaphore, Thread
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric, MetricsHandler
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from installer.errors import Exit, InstallerError, Option, Remedy
from installer.host import supervision
from installer.host.events import log_failures
from installer.host.files import Host
from installer.host.sockets import Connection, Listener, ended_after, is_abandoned, listen_tcp, listen_unix
from installer.model.options import Listen, Options

AT_MOST_S: Final = 1.0
MOST_CLIENTS: Final = 64  # a client beyond these waits until one of them has ended, a second at most


class _Text(Struct, frozen=True):
    """The metrics, read anew for each client: the library renders them in the client's format."""

    path: Path

    def collect(self) -> Iterator[Metric]:
        yield from text_string_to_metric_families(self.path.read_text())  # type: ignore[no-untyped-call]


class _Handler(MetricsHandler):
    def do_GET(self) -> None:  # noqa: N802 - its name in the library
        try:
            super().do_GET()
        except (ConnectionError, TimeoutError):  # the client is gone
            raise
        except Exception:  # noqa: BLE001 - for a senseless request the library raises any exception
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)


def serve_beside(options: Options) -> Exit:
    """Serve metrics until a stop, as a child of ``run``."""
    assert options.metrics_listen is not None  # noqa: S101 - the supervisor starts no such child otherwise
    if not supervision.end_with_run():
        return Exit.OK
    with log_failures():
        _serve(Host.under(options.host_root, options.mounts), options.metrics_listen, options.layout.answer)
    return Exit.OK if supervision.stop_requested() else Exit.FAILED


def _serve(host: Host, where: Listen, answer: PurePosixPath) -> None:
    registry = CollectorRegistry()
    registry.register(_Text(host.local_path(answer)))
    server = BaseServer("", _Handler.factory(registry))
    free = BoundedSemaphore(MOST_CLIENTS)

    def answer_client(connection: Connection, peer: object) -> None:
        try:
            with suppress(OSError), connection, ended_after(connection, AT_MOST_S):  # the client has gone
                server.finish_request(connection, peer)
        finally:
            free.release()

    while not supervision.stop_requested():
        with _bind(host, where) as listener:
            listener.settimeout(1)
            # Clients find the socket by its name, which may have been removed.
            while not supervision.stop_requested() and (where.path is None or host.exists(where.path)):
                with suppress(OSError):  # no client, or one that has gone
                    connection, peer = listener.accept()
                    free.acquire()
                    Thread(target=answer_client, args=(connection, peer), daemon=True).start()
    if where.path is not None:
        host.remove(where.path)


def _bind(host: Host, where: Listen) -> Listener:
    try:
        if where.path is None:
            return listen_tcp(where.address, where.port)
        local = host.local_path(where.path, last=False)
        if is_abandoned(local):
            host.remove(where.path)
        return listen_unix(local)
    except OSError as error:
        problem = f"listen on {where} ({(error.strerror or str(error)).lower()})"
        remedy = Remedy(
            "free it, or choose another address, such as unix:PATH, with ", Option("metrics-listen")
        )
        raise InstallerError(problem, remedy=remedy, code="name-taken") from error
