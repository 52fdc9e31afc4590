"""Whether containers have room for their state, and how file systems are mounted that they start from."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
from installer.decide.data import dataclass
from installer.decide.engines import ENGINES
from installer.decide.engines.containerd import CONTAINERD
from installer.decide.engines.row import Api
from installer.decide.errors import InstallerError
from installer.host import docker_data
from installer.host.devices import is_full
from installer.host.files import Host
from installer.record.cmdline import value_of


@dataclass(frozen=True, slots=True)
class Data:
    """Where an engine has the files of its containers: at ``usual``, if no flag and no key says otherwise."""

    flags: tuple[str, ...]
    key: str
    usual: PurePosixPath


DATA: Final = {
    "docker": Data(("--data-root",), "data-root", docker_data.USUAL),
    "containerd": Data(("--root",), "root", PurePosixPath("/var/lib/containerd")),
}


def state_of(name: str) -> tuple[PurePosixPath, ...]:
    """Return where an engine usually has the state of its containers; Docker has more than one place."""
    return (
        ENGINES[name].state.usual,
        *((CONTAINERD.state.usual,) if ENGINES[name].api is Api.DOCKER else ()),
    )


def writes_to(name: str) -> tuple[PurePosixPath, ...]:
    """Return where an engine usually has the files of its containers."""
    names = (name, *((CONTAINERD.name,) if ENGINES[name].api is Api.DOCKER else ()))
    return tuple(DATA[each].usual for each in names if each in DATA)


def data_of(host: Host, name: str, config: PurePosixPath, words: tuple[str, ...]) -> PurePosixPath | None:
    """Return where an engine that was started with these words has the files of its containers."""
    if (place := DATA.get(name)) is None:
        return None
    said: object = value_of(words, place.flags)
    if said is None:
        with suppress(InstallerError):
            said = tree_of(host.read(config), config).get(place.key)
    return PurePosixPath(said) if isinstance(said, str) and said.startswith("/") else place.usual


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
