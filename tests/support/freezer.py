"""A cgroup that is frozen, of each kind: what is in it does nothing, and is not told so."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import until

# Where its processes stand, and what freezes and thaws it (cgroups(7)).
FREEZERS: Final = {
    "v1": (Path("/sys/fs/cgroup/freezer"), "freezer.state", "FROZEN", "THAWED"),
    "v2": (Path("/sys/fs/cgroup/unified"), "cgroup.freeze", "1", "0"),
}
FREEZES_S: Final = 5


@contextmanager
def frozen(kind: str, pid: int) -> Iterator[None]:
    """Freeze a process, and thaw it; skip the test where that kind of cgroup is not to be had."""
    top, switch, freezes, thaws = FREEZERS[kind]
    group = top / f"toolkit-installer-{pid}"
    try:
        (top / "cgroup.procs").stat()
        group.mkdir()
    except OSError:
        pytest.skip(f"no cgroup {kind} below {top}")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / switch).write_text(freezes)
        until(lambda: _is_frozen(group, switch, freezes), FREEZES_S)
        yield
    finally:
        (group / switch).write_text(thaws)
        with suppress(ProcessLookupError):
            (top / "cgroup.procs").write_text(str(pid))
        until(lambda: _is_removed(group), FREEZES_S)


def _is_frozen(group: Path, switch: str, freezes: str) -> bool:
    """Tell whether its processes are frozen: of v2 the switch tells at once what was asked for."""
    events = group / "cgroup.events"
    if events.exists():
        return "frozen 1" in events.read_text()
    return (group / switch).read_text().strip() == freezes


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True
