"""``run`` answers who asks for metrics while it waits, and opens no file of root's to who may write beside the socket."""

import ast
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.site import Site, ended, waits
from tests.support.waiting import until_it_sleeps

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: application/openmetrics-text\r\n\r\n"
SOCKET = "/run/toolkit-installer.sock"


@pytest.fixture
def port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def connected(where: int | Path) -> Iterator[socket.socket]:
    family = socket.AF_INET if isinstance(where, int) else socket.AF_UNIX
    with socket.socket(family) as client:
        client.settimeout(10)
        client.connect(("127.0.0.1", where) if isinstance(where, int) else str(where))
        yield client


def asked(where: int | Path, request: bytes = REQUEST) -> tuple[str, str]:
    """Return the head and the body of an answer."""
    with connected(where) as client:
        client.sendall(request)
        head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    return head.decode(), body.decode()


def test_it_answers_on_a_port_and_after_every_hangup(clean: Site, port: int) -> None:
    with clean.running("--metrics-listen", f"127.0.0.1:{port}") as child:
        for number in range(3):
            until_it_sleeps(child.pid)
            head, body = asked(port)
            assert head.splitlines()[0] == "HTTP/1.0 200 OK"
            assert "\nContent-Type: application/openmetrics-text;" in head
            assert "\n# TYPE toolkit_installer info\n" in body
            assert body.endswith("# EOF\n")
            assert all(line.startswith(("# ", "toolkit_installer_")) for line in body.splitlines())
            assert "\ntoolkit_installer_installs_total 1.0\n" in body
            if number < 2:
                child.send_signal(signal.SIGHUP)
                waits(child)
        ended(child)
    with pytest.raises(ConnectionRefusedError):
        asked(port)


def test_it_answers_on_a_socket_for_all_which_goes_with_the_undo(site: Site) -> None:
    (site.root / "run").mkdir(exist_ok=True)
    before = site.tree()
    path = site.root / SOCKET.lstrip("/")
    with site.running("--metrics-listen", f"unix:{SOCKET}") as child:
        until_it_sleeps(child.pid)
        head, _ = asked(path)
        mode = stat.S_IMODE(path.stat().st_mode)
        child.kill()
        child.wait()
    with site.running("--metrics-listen", f"unix:{SOCKET}") as child:  # in the place of the dead one
        until_it_sleeps(child.pid)
        _, body = asked(path)
        ended(child)

    assert head.startswith("HTTP/1.0 200 OK\r\n")
    assert mode == 0o666
    assert "\ntoolkit_installer_installs_total 2.0\n" in body
    assert site.tree() == before


def test_clients_that_send_nothing_delay_neither_others_nor_a_stop(site: Site, port: int) -> None:
    with site.running("--metrics-listen", f"127.0.0.1:{port}", "--on-exit", "keep") as child:
        until_it_sleeps(child.pid)
        with connected(port):
            assert asked(port)[0].startswith("HTTP/1.0 200 ")
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
        began = time.monotonic()
        ended(child)
        took_s = time.monotonic() - began
        for client in clients:
            client.close()

    assert took_s < 5  # one after the other they had ten seconds


def test_clients_with_half_a_request_delay_no_scrape(site: Site, port: int) -> None:
    with site.running("--metrics-listen", f"127.0.0.1:{port}", "--on-exit", "keep") as child:
        until_it_sleeps(child.pid)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        for client in clients:
            client.sendall(b"GET /metrics HT")
        began = time.monotonic()
        heads = [asked(port)[0] for _ in range(5)]
        took_s = time.monotonic() - began
        for client in clients:
            client.close()
        ended(child)

    assert [head.splitlines()[0] for head in heads] == ["HTTP/1.0 200 OK"] * 5
    assert took_s < 10  # one after the other each of the sixty had a second


PACKAGE = Path(__file__).parents[2] / "installer"
BY_NAME = {"chmod", "lchmod", "chown", "lchown"}


def test_no_mode_and_no_owner_is_changed_by_name() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in BY_NAME)
        or (isinstance(node, ast.ImportFrom) and BY_NAME & {alias.name for alias in node.names})
    ]

    assert found == []
