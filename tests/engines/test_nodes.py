"""What Debian carries is enough to speak of support, and a node leaves nothing on the machine."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.engines.conftest import Boot
from tests.engines.images import IMAGE
from tests.engines.versions import EngineSet

pytestmark = pytest.mark.night


def test_the_archive_carries_enough_engines_to_speak_of_support(engines_today: list[EngineSet]) -> None:
    containerds = {row.containerd for row in engines_today}
    dockerds = {row.docker for row in engines_today if row.docker}

    assert len([version for version in containerds if version.startswith("1.")]) >= 2
    assert len([version for version in containerds if version.startswith("2.")]) >= 1
    assert len(dockerds) >= 2


@pytest.mark.parametrize("interrupted", [False, True], ids=["after the test", "on ctrl-c"])
def test_a_stopped_node_leaves_nothing_behind(
    *, interrupted: bool, booted: Boot, engines_today: list[EngineSet]
) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    row = next(row for row in engines_today if row.docker)

    with suppress(KeyboardInterrupt), booted(row) as node:
        name, leader = node.name, node.leader
        node.run(["docker", "run", "--detach", "--net", "none", IMAGE])
        if interrupted:
            raise KeyboardInterrupt

    assert not Path(f"/proc/{leader}").exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{name}"))
    assert not [path for path in Path("/proc").glob("[0-9]*/cgroup") if name in _read(path)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it ended meanwhile
        return ""
