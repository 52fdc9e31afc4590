"""Files for others to read: ours are replaced and removed, anybody else's never."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from installer.change.ledger import MARK, OPENMETRICS_MARKS, is_foreign
from installer.change.ledger import remove_published as remove
from installer.host.files import Host
from installer.host.sockets import FOR_ALL

OURS = f"{MARK}\nx 1\n"
ANSWER, ANSWER_020 = OPENMETRICS_MARKS


def _left(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    path.chmod(FOR_ALL)


@pytest.mark.parametrize(
    ("name", "make", "foreign", "removed"),
    [
        pytest.param("a.prom", lambda path: path.write_text(OURS), False, True, id="ours"),
        pytest.param("a.openmetrics", lambda path: path.write_text(ANSWER_020), False, True, id="of 0.2.0"),
        pytest.param("a.prom", lambda path: path.write_text("x 1\n"), True, False, id="root's"),
        pytest.param("a.prom", lambda path: path.symlink_to("b"), True, False, id="a link"),
        pytest.param("a.prom", os.mkfifo, True, False, id="a FIFO"),
        pytest.param("a.sock", _left, False, True, id="a socket that was left"),
        pytest.param("a.sock", lambda path: path.write_text(OURS), True, False, id="no socket"),
    ],
)
def test_what_has_the_name_already(
    tmp_path: Path, name: str, make: Callable[[Path], object], *, foreign: bool, removed: bool
) -> None:
    with contextlib.chdir(tmp_path):  # the name of a socket is short
        make(Path(name))
    host, path = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/", name)
    before = os.path.lexists(tmp_path / name)

    found = is_foreign(host, path)
    remove(host, path)

    assert found == foreign
    assert (before and not os.path.lexists(tmp_path / name)) == removed
