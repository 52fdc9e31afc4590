"""Paths of the host: which links are followed, what is never wider than it will be, and what anybody may have written."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.errors import InstallerError
from installer.host import kernel
from installer.host.files import MOST_BYTES, Host, is_absent, is_file, read_json_of_root, text, used_percent
from installer.host.inodes import is_mount_point
from installer.host.trees import remove_tree
from installer.model.files import File, Kind
from tests.support.neighbours import NOBODY, only_as_root

OURS = File(b"ours")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/daemon.json").write_text("theirs")
    (tmp_path / "etc/daemon.json").chmod(0o640)
    return Host.under(PurePosixPath(tmp_path))


@only_as_root
@pytest.mark.parametrize(
    ("mode", "of_nobody", "followed"),
    [
        (0o755, "", True),
        (0o2775, "", True),
        (0o755, "some/link", True),  # root put it there
        (0o1777, "", True),
        (0o1777, "some/link", False),
        (0o777, "", False),
        (0o755, "some", False),
    ],
)
def test_only_a_link_that_root_placed_is_followed(
    host: Host, tmp_path: Path, mode: int, of_nobody: str, *, followed: bool
) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some").chmod(mode)
    (tmp_path / "some/link").symlink_to("/etc")
    if of_nobody:
        os.lchown(tmp_path / of_nobody, NOBODY, NOBODY)
    path = PurePosixPath("/some/link/daemon.json")

    if followed:
        host.replace(path, OURS)
    else:
        for act in (host.read, host.remove, host.make_directory, lambda path: host.replace(path, OURS)):
            with pytest.raises(InstallerError, match=r"cannot follow the link /some/link .*root"):
                act(path)

    assert (tmp_path / "etc/daemon.json").read_bytes() == (b"ours" if followed else b"theirs")
    assert host.read(PurePosixPath("/etc/daemon.json")) is not None


@pytest.mark.parametrize(
    ("act", "more"),
    [
        (Host.replace, (OURS,)),
        (Host.remove, ()),
        (Host.link, ("x",)),
        (Host.make_directory, ()),
        (remove_tree, ()),
    ],
)
def test_a_directory_that_becomes_a_link_after_the_look_leads_nowhere(
    host: Host,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[..., object],
    more: tuple[Any, ...],
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/daemon.json").write_text("another's")
    resolve = Host.resolve

    def switched(self: Host, path: PurePosixPath, *, last: bool = True) -> PurePosixPath:
        done = resolve(self, path, last=last)
        (tmp_path / "etc").rename(tmp_path / "former")
        (tmp_path / "etc").symlink_to("other")
        return done

    monkeypatch.setattr(Host, "resolve", switched)
    try:
        act(host, PurePosixPath("/etc/new" if act is Host.make_directory else "/etc/daemon.json"), *more)
    except InstallerError as error:
        assert "make every part of the path above it a directory" in str(error)

    assert [(each.name, each.read_text()) for each in (tmp_path / "other").iterdir()] == [
        ("daemon.json", "another's")
    ]


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_directory_is_never_wider_than_it_will_be(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, umask: int
) -> None:
    seen: list[int] = []
    mkdir = os.mkdir

    def watched(name: str, *arguments: int, dir_fd: int) -> None:
        mkdir(name, *arguments, dir_fd=dir_fd)
        seen.append(stat.S_IMODE(os.stat(name, dir_fd=dir_fd).st_mode))

    monkeypatch.setattr(os, "mkdir", watched)
    before = os.umask(umask)
    host.make_directory(PurePosixPath("/new"), mode)
    os.umask(before)

    assert [each & ~mode for each in seen] == [0]
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode


@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, Kind.FIFO), (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), Kind.OTHER)],
    ids=["FIFO", "socket"],
)
def test_what_is_no_file_is_refused_and_not_waited_for(
    host: Host, tmp_path: Path, make: Callable[[Path], None], kind: Kind
) -> None:
    make(tmp_path / "etc/strange")

    with pytest.raises(InstallerError, match=r"cannot read /etc/strange \(it is not a regular file\)"):
        host.read(PurePosixPath("/etc/strange"))
    assert host.kind(PurePosixPath("/etc/strange")) is kind


STRANGE = b"/mnt/a b\\c\td\n\xff\x85e\xc3\xa9\x0b\x1c"
# As the kernel writes it for fusermount3 and for mount (Linux 6.18).
LINE = rb"31 1 0:5 /x\040\377 /mnt/a\040b\134c\011d\012" + STRANGE[13:] + b" rw - fuse.x x rw"


def test_a_mount_point_may_have_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_bytes(LINE + b"\n\nnot a mount\n")
    monkeypatch.setattr(kernel, "MOUNTINFO", tmp_path / "mountinfo")

    ((point, source),) = kernel.list_mounts()

    assert os.fsencode(point) == STRANGE
    assert os.fsencode(source) == b"/x \xff"
    assert is_mount_point(Path(point))


FILE = PurePosixPath("/file")


def _strangers_link(path: Path) -> None:
    """Make a link that anybody could have placed: nobody follows it."""
    path.with_name("open").mkdir(mode=0o777)
    path.with_name("open").chmod(0o777)
    path.with_name("open").joinpath("link").symlink_to("/etc/passwd")
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
        pytest.param(
            lambda path: path.write_bytes(b"a" * MOST_BYTES), "a" * MOST_BYTES, True, False, id="large"
        ),
        pytest.param(lambda path: path.write_bytes(bytes(MOST_BYTES + 1)), "", True, False, id="too large"),
    ],
)
def test_a_place_is_read_only_if_it_is_a_bounded_regular_file(
    tmp_path: Path, make: Callable[[Path], object], said: str, *, file: bool, absent: bool
) -> None:
    make(tmp_path / "file")
    host = Host.under(PurePosixPath(tmp_path))

    assert (text(host, FILE), is_file(host, FILE), is_absent(host, FILE)) == (said, file, absent)
    assert read_json_of_root(host, FILE, dict[str, int]) is None


@pytest.mark.parametrize("said", ['{"a": 1}', "[]", "null", "[" * 9000, "\xff", ""])
def test_an_object_of_roots_alone_is_believed(tmp_path: Path, said: str) -> None:
    host, path = Host.under(PurePosixPath(tmp_path)), tmp_path / "file"
    path.write_bytes(said.encode("latin-1"))
    is_object = said.startswith("{")

    assert read_json_of_root(host, FILE, dict[str, int]) == (json.loads(said) if is_object else None)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
        assert read_json_of_root(host, FILE, dict[str, int]) is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [pytest.param(0, (100, -1), id="writable"), pytest.param(os.ST_RDONLY, None, id="an image, always full")],
)
def test_what_is_read_only_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, said: object
) -> None:
    full = os.statvfs_result((4096, 4096, 9, 0, 0, 0, 0, 0, flags, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert used_percent(Host.under(PurePosixPath(tmp_path)), PurePosixPath("/")) == said


def test_a_directory_is_listed_with_kinds_and_no_link_is_followed(tmp_path: Path) -> None:
    listed = tmp_path / "root/etc"
    (listed / "below").mkdir(parents=True)
    (listed / "mounted").mkdir()
    (listed / "file").write_text("")
    (listed / "link").symlink_to("below")
    os.mkfifo(listed / "pipe")
    (tmp_path / "a file").write_text("")
    pair = (PurePosixPath("/etc/mounted"), PurePosixPath(tmp_path / "a file"))
    host = Host.under(PurePosixPath(tmp_path / "root"), (pair,))

    assert host.kinds(PurePosixPath("/etc")) == {
        "below": Kind.DIRECTORY,
        "file": Kind.FILE,
        "link": Kind.LINK,
        "mounted": Kind.FILE,
        "pipe": Kind.OTHER,
    }
    assert host.kinds(PurePosixPath("/etc/missing")) == {}
