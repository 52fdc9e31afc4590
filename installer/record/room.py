"""Whether containers have room for their state, and how file systems are mounted that they start from."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from installer.decide.engines import ENGINES
from installer.decide.engines.containerd import CONTAINERD
from installer.decide.engines.row import Api
from installer.decide.errors import InstallerError
from installer.host.devices import is_full
from installer.host.files import Host


def state_of(name: str) -> tuple[PurePosixPath, ...]:
    """Return where an engine usually has the state of its containers; Docker has more than one place."""
    return (
        ENGINES[name].state.usual,
        *((CONTAINERD.state.usual,) if ENGINES[name].api is Api.DOCKER else ()),
    )


def crowded(host: Host, names: Iterable[str]) -> Iterator[PurePosixPath]:
    """Yield where these engines have the state of containers, and have no room for one more."""
    places = dict.fromkeys(place for name in names for place in state_of(name))
    yield from (place for place in places if is_full(host, place))


def mounted(host: Host, path: PurePosixPath, pid: int | None = None) -> tuple[str, ...]:
    """Return how the file system of ``path`` is mounted for a process: ours may be mounted otherwise."""
    for root in (f"/proc/{pid}/root",) if pid else ():
        with suppress(InstallerError):
            return Host.under(PurePosixPath(root)).mounted(path)
    with suppress(InstallerError):
        return host.mounted(path)
    return ()
