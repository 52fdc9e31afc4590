"""One verify at a time."""

from pathlib import Path, PurePosixPath

import pytest

from installer.errors import LockedError
from installer.host.files import Host
from installer.host.locks import lock_file

LEDGER = PurePosixPath("/ledger")


def test_a_second_one_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("")
    host = Host.under(PurePosixPath(tmp_path))

    with (
        lock_file(host, LEDGER),
        pytest.raises(LockedError, match="another instance holds /ledger"),
        lock_file(host, LEDGER),
    ):
        pass
    with lock_file(host, LEDGER):
        pass
