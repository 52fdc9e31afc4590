"""Who else may write where the socket of metrics is made: no file of root's is opened to him."""

import ast
import ctypes
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from installer.host.files import Host
from installer.metrics.listening import bind
from installer.model.options import Listen
from tests.support.neighbours import NOBODY, only_as_root
from tests.support.site import Site, sentence

PACKAGE = Path(__file__).parents[2] / "installer"
BY_NAME = {"chmod", "lchmod", "chown", "lchown"}
IN_CREATE = 0x100
TRIES = 200


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file of root's for root alone."""
    path = tmp_path / "secret"
    path.write_text("secret")
    path.chmod(0o600)
    return path


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    directory = tmp_path / "theirs"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    return directory


def _exchange(directory: Path, name: str, target: Path) -> None:
    """Put a link to ``target`` in the place of each file called ``name``, as soon as inotify tells of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(0)
    assert libc.inotify_add_watch(fd, os.fsencode(directory), IN_CREATE) >= 0
    os.chdir(directory)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    Path("ready").mkdir()
    link = Path("link")
    while True:
        link.symlink_to(target)
        while name.encode() not in os.read(fd, 4096):
            pass
        link.rename(name)


@contextmanager
def exchanging(directory: Path, name: str, target: Path) -> Iterator[None]:
    pid = os.fork()
    if not pid:
        try:
            _exchange(directory, name, target)
        finally:
            os._exit(1)
    try:
        while not (directory / "ready").exists():
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@only_as_root
def test_a_link_that_takes_the_place_of_the_socket_opens_no_file_of_roots(
    secret: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, path = Host.under(PurePosixPath("/")), theirs / "x.sock"
    monkeypatch.setattr(host, "kind", lambda *_, **__: None)  # whatever stands there is removed by the test

    with exchanging(theirs, path.name, secret):
        for _ in range(TRIES):
            bind(host, Listen(PurePosixPath(path))).close()
            while not path.is_symlink():
                time.sleep(0.0001)
            path.unlink()

    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@only_as_root
@pytest.mark.parametrize(
    ("mode", "owner", "remedy"),
    [
        pytest.param(0o777, 0, "chmod o-w /shared; ", id="everybody's"),
        pytest.param(0o755, NOBODY, "chown root /shared; ", id="another's"),
    ],
)
def test_a_directory_where_a_stranger_could_exchange_the_socket_is_refused(
    tmp_path: Path, mode: int, owner: int, remedy: str
) -> None:
    site = Site(tmp_path)
    (site.root / "shared").mkdir()
    (site.root / "shared").chmod(mode)
    os.chown(site.root / "shared", owner, owner)
    before = site.tree(times=True)

    done = site.call("run", "--metrics-listen", "unix:/shared/x.sock")

    assert done.returncode == 1
    assert sentence(done).startswith("cannot listen on /shared/x.sock (")
    assert remedy in sentence(done)
    assert "choose another --metrics-listen" in sentence(done)
    assert site.tree(times=True) == before


@pytest.mark.parametrize("mask", [0o000, 0o077], ids=["everything", "root alone"])
def test_a_socket_is_for_all_whatever_the_umask_is(tmp_path: Path, mask: int) -> None:
    path, before = tmp_path / "x.sock", os.umask(mask)
    try:
        bind(Host.under(PurePosixPath("/")), Listen(PurePosixPath(path))).close()
    finally:
        after = os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert after == mask


def test_no_mode_and_no_owner_is_changed_by_name() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in BY_NAME)
        or (isinstance(node, ast.ImportFrom) and BY_NAME & {alias.name for alias in node.names})
    ]

    assert found == []
