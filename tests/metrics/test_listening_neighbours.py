"""Who else may write where the socket of metrics is made: no file of root's is opened to him."""

import ast
import os
import stat
from pathlib import Path, PurePosixPath

import pytest

from installer.host.files import Host
from installer.metrics.listening import bind
from installer.model.options import Listen
from tests.support.neighbours import NOBODY, only_as_root
from tests.support.site import Site, sentence

PACKAGE = Path(__file__).parents[2] / "installer"
BY_NAME = {"chmod", "lchmod", "chown", "lchown"}


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
