"""The docker SDK as we hold it: nobody's settings, one deadline, nothing unpacked."""

import gzip
import json
import threading
from pathlib import Path

import pytest

from installer.engines.docker.api import ask_info
from installer.engines.trial_containers import remove_containers
from installer.errors import InstallerError
from tests.host.servers import answer, drip, serving

ABSENT = b'{"message":"No such container"}'
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(ABSENT) + ABSENT


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(".docker/config.json", '{"auths": {"registry": {"auth": "no base64!"}}}', id="password"),
        pytest.param(".docker/config.json", '{"proxies": {"default": "no table"}}', id="proxies"),
        pytest.param(".dockercfg", '{"registry": "no table"}', id="old"),
    ],
)
def test_nothing_of_a_users_settings_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    with serving(tmp_path / "docker.sock", answer(NOT_FOUND)) as docker:
        assert remove_containers(docker, "ours", timeout_s=5) == []


def test_a_dockerd_that_drips_holds_nobody_who_removes_a_container(tmp_path: Path) -> None:
    over = threading.Event()

    with serving(tmp_path / "docker.sock", drip(NOT_FOUND * 9, pause=over)) as docker:
        with pytest.raises(InstallerError, match=r"remove a container .*(timed out|in time)"):
            remove_containers(docker, "ours", timeout_s=1)
        over.set()


def test_an_answer_is_never_unpacked(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"Runtimes": {}, "DefaultRuntime": "runc"}).encode())
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"

    with (
        serving(tmp_path / "docker.sock", answer(head.encode() + packed)) as docker,
        pytest.raises(InstallerError, match="understand what answers"),
    ):
        ask_info(docker, timeout_s=5)
