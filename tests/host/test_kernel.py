import os
from pathlib import Path, PurePosixPath

import pytest

from installer.host import kernel
from installer.host.files import Host, mount_point_of
from installer.host.inodes import is_mount_point

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


@pytest.mark.parametrize("bound", [True, False])
def test_what_is_to_be_mounted_otherwise_is_named_by_its_mount_point(
    monkeypatch: pytest.MonkeyPatch, *, bound: bool
) -> None:
    point = PurePosixPath("/etc" if bound else "/proc")
    monkeypatch.setattr(Host, "mounted", lambda _, path: ("noexec",) if path.is_relative_to(point) else ())

    assert mount_point_of(Host.under(PurePosixPath("/")), point / "sys/kernel", "noexec") in {
        point,
        point / "sys",  # which many a container has mounted anew
    }
