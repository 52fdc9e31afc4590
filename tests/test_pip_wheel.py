"""What `make demo` fetches where Python has no pip: one file, by the standard library, with a known sum."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.pip_wheel import BILL, fetch, find_index

NAME = "pip-1.0-py3-none-any.whl"
CONTENT = b"a wheel"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@contextmanager
def _index(link: str) -> Iterator[str]:
    """Serve an index that lists one link, and the wheel below /files; yield the index's address."""

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages = {"/simple/pip/": f'<a href="{link}">x</a>'.encode(), f"/files/{NAME}": CONTENT}
            page = pages.get(self.path)
            self.send_response(200 if page else 404)
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


@pytest.mark.parametrize("link", [f"../../files/{NAME}", f"/files/{NAME}#sha256={DIGEST}"])
def test_pip_is_the_file_that_the_index_lists(link: str) -> None:
    with _index(link) as index:
        assert fetch(index, NAME, DIGEST) == CONTENT
        assert fetch(f"{index}/", NAME, DIGEST) == CONTENT


def test_pip_with_another_sum_is_refused() -> None:
    with (
        _index(f"/files/{NAME}#sha256={DIGEST}") as index,
        pytest.raises(ValueError, match=f"expected {'0' * 64}"),
    ):
        fetch(index, NAME, "0" * 64)


@pytest.mark.parametrize("link", ["/files/pip-1.0.tar.gz", f"/files/not-{NAME}.asc", f"file:///files/{NAME}"])
def test_an_index_without_that_file_is_refused(link: str) -> None:
    with _index(link) as index, pytest.raises(ValueError, match=r"does not list|is no address"):
        fetch(index, NAME, DIGEST)


def test_the_index_is_that_of_pip_or_that_of_the_bill_of_materials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert f'"{find_index()}click/"' in BILL.read_text()

    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example.com/simple")
    assert find_index() == "https://mirror.example.com/simple"
