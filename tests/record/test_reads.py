"""Whether an engine may serve less than it says, for its configs were changed since its start."""

from pathlib import Path, PurePosixPath

import pytest

from installer.decide.engines import ENGINES
from installer.host.files import Host
from installer.host.inodes import changed_s
from installer.record.reads import TICK_S, outdated

CONFIG = PurePosixPath("/etc/crio/crio.conf")


@pytest.mark.parametrize(
    ("engine", "after_s", "expected"),
    [
        pytest.param("crio", 1.0, True, id="written after its start"),
        pytest.param("crio", 0.0, False, id="written in the moment of its start, which is told in ticks"),
        pytest.param("crio", -1.0, False, id="written before its start"),
        pytest.param("containerd", 1.0, False, id="an engine that tells what it serves"),
    ],
)
def test_what_was_written_after_the_start_makes_its_words_doubtful(
    tmp_path: Path, engine: str, after_s: float, *, expected: bool
) -> None:
    file = tmp_path / "etc/crio/crio.conf"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert TICK_S < 1
    started_s = changed_s(file) - after_s

    assert outdated(Host.under(PurePosixPath(tmp_path)), ENGINES[engine], started_s, [CONFIG]) is expected
    assert not outdated(Host.under(PurePosixPath(tmp_path)), ENGINES[engine], None, [CONFIG])
