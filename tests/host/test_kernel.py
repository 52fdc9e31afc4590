import os
from pathlib import Path

import pytest

from installer.host import kernel
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
