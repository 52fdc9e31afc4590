"""A host that remembers how everything stood that was looked at, so that the next one need not look again."""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from installer.host.files import Host
from installer.host.glance import mark
from installer.host.places import Mount, Place

FIELDS: Final = 6  # of a mark that ends in the time of the last change
SECOND_NS: Final = 10**9
TICK_NS: Final = 20 * 10**6  # two of the kernel's slowest ticks: changes within one have the same time


class Watched(Host):
    """A host whose ``marks`` tell how all that was looked at stood just before the first look."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        super().__init__(mounts)
        self._marks: dict[tuple[str, bool], str] = {}

    def _mapped(self, path: PurePosixPath) -> Place:
        place = super()._mapped(path)
        self._look(str(place.local_path))
        return place

    def _local(self, path: str) -> str:
        local = super()._local(path)
        self._look(local)
        return local

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return the sorted names in a directory, once it has its mark."""
        self._look(str(self.local_path(path)), listed=True)
        return super().names(path)

    def below(self, path: PurePosixPath) -> Iterator[Path]:
        """Return what stands at ``path`` and below it, once all of it has its mark."""
        for each in super().below(path):
            self._look(str(each), listed=True)
        return super().below(path)

    def _look(self, path: str, *, listed: bool = False) -> None:
        if (path, listed) not in self._marks:
            self._marks[path, listed] = mark(path, listed=listed)

    @property
    def marks(self) -> dict[str, tuple[str, ...]]:
        """The marks of each path for this process; a directory that was listed has two."""
        found: dict[str, tuple[str, ...]] = {}
        for (path, _), each in self._marks.items():
            found[path] = tuple(dict.fromkeys((*found.get(path, ()), each)))
        return found

    @property
    def settled_ns(self) -> int:
        """From when on, as time.time_ns, a change of anything that was seen gives it another mark."""
        return max((settled_ns(each) for each in self._marks.values()), default=0)


def settled_ns(found: str) -> int:
    """Return from when on, as time.time_ns, a change of what has this mark gives it another one."""
    changed_ns = _changed_ns(found)
    if changed_ns is None:
        return 0
    # A file system that has no parts of a second gives all of a second the same time.
    return changed_ns + TICK_NS + (0 if changed_ns % SECOND_NS else SECOND_NS)


def _changed_ns(found: str) -> int | None:
    """Return the time of the last change that a mark ends in; None where it has none."""
    words = found.split(":")
    return int(words[-1]) if len(words) == FIELDS else None
