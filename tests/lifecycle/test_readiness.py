from pathlib import Path, PurePosixPath

import pytest

from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.locks import lock_pidfile, write_pid
from installer.lifecycle import readiness as ready
from installer.model.facts import Record
from tests.support.tree import tree

READY, PIDFILE = PurePosixPath("/ready"), PurePosixPath("/toolkit.pid")


def test_readiness_is_published_and_withdrawn(tmp_path: Path) -> None:
    host = Host.under(PurePosixPath(tmp_path))

    ready.refuse_foreign(host, READY)
    ready.publish(host, READY, Record())
    ready.refuse_foreign(host, READY)
    assert not ready.is_ready(host, READY, PIDFILE), "nobody holds the pidfile"
    lock = lock_pidfile(host, PIDFILE)
    write_pid(lock, PIDFILE)
    assert ready.is_ready(host, READY, PIDFILE)
    ready.remove(host, READY)
    assert not ready.is_ready(host, READY, PIDFILE)
    lock.release()

    assert not (tmp_path / "ready").exists()


@pytest.mark.parametrize(
    "text", ["", "{}", '{"pid": 1}', "[" * 100_000, '["boot_id", "pid", "plan", "engines", "time"]', None]
)
def test_what_somebody_else_calls_ready_stays_as_it_is(tmp_path: Path, text: str | None) -> None:
    host, place = Host.under(PurePosixPath(tmp_path)), tmp_path / "ready"
    place.symlink_to("elsewhere") if text is None else place.write_text(text)
    before = tree(tmp_path)

    with pytest.raises(InstallerError, match="publish readiness in /ready"):
        ready.refuse_foreign(host, READY)
    ready.remove(host, READY)

    assert not ready.is_ready(host, READY, PIDFILE)
    assert tree(tmp_path) == before
