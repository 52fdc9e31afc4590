"""Texts that anybody may have written: what cannot be read is empty, and never an error."""

import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from installer.host.files import MOST_BYTES, Host, is_absent, is_file, read_json_of_root, text

FILE = PurePosixPath("/file")


def _strangers_link(path: Path) -> None:
    """Make a link that anybody could have placed: nobody follows it."""
    path.parent.joinpath("open").mkdir()
    path.parent.joinpath("open/link").symlink_to("/etc/passwd")
    for each in ("open", "open/link") if os.geteuid() == 0 else ():
        os.lchown(path.parent / each, 1234, 1234)
    path.symlink_to("open/link")


@pytest.mark.parametrize(
    ("make", "said", "file", "absent"),
    [
        pytest.param(lambda path: path.write_text("a"), "a", True, False, id="a text"),
        pytest.param(lambda path: path.write_bytes(b"a\xff"), "a\ufffd", True, False, id="any bytes"),
        pytest.param(lambda _: None, "", False, True, id="nothing"),
        pytest.param(lambda path: path.mkdir(), "", False, False, id="a directory"),
        pytest.param(lambda path: path.symlink_to(path.name), "", False, False, id="a link to itself"),
        pytest.param(_strangers_link, "", False, False, id="a link of a stranger's"),
        pytest.param(lambda path: path.symlink_to("/gone"), "", False, False, id="a link to nowhere"),
        pytest.param(lambda path: path.write_bytes(bytes(MOST_BYTES + 1)), "", True, False, id="too large"),
    ],
)
def test_what_can_be_had(
    tmp_path: Path, make: Callable[[Path], object], said: str, *, file: bool, absent: bool
) -> None:
    make(tmp_path / "file")
    host = Host.under(PurePosixPath(tmp_path))

    assert (text(host, FILE), is_file(host, FILE), is_absent(host, FILE)) == (said, file, absent)
    assert read_json_of_root(host, FILE, dict[str, int]) is None


def test_a_text_may_be_as_large_as_that(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(MOST_BYTES))

    assert len(text(Host.under(PurePosixPath(tmp_path)), FILE)) == MOST_BYTES


@pytest.mark.parametrize("said", ['{"a": 1}', "[]", "7", '"a"', "null", "[" * 9000, "\xff", ""])
def test_an_object_of_roots_alone_is_believed(tmp_path: Path, said: str) -> None:
    host, path = Host.under(PurePosixPath(tmp_path)), tmp_path / "file"
    path.write_bytes(said.encode("latin-1"))
    is_object = said.startswith("{")

    assert read_json_of_root(host, FILE, dict[str, int]) == (json.loads(said) if is_object else None)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
        assert read_json_of_root(host, FILE, dict[str, int]) is None
