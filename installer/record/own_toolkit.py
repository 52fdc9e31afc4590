"""The toolkit in place: whether it is as it was installed, and the host's own programs that it leads to."""

from collections.abc import Iterator

from installer.decide.integrity import damage, programs_in_place
from installer.decide.layout import Layout
from installer.decide.rows import ToolkitRow
from installer.host.digests import digests_below
from installer.host.entries import entries
from installer.host.files import Host


def damaged(host: Host, layout: Layout, toolkit: ToolkitRow, *, deep: bool) -> Iterator[tuple[str, str]]:
    """Yield each file of the payload that is not as it was installed; only if ``deep`` are they read."""
    if toolkit.files:
        version = layout.version(toolkit.version)
        with digests_below(host, version if deep else None) as digests:
            found = entries(host, version)
            yield from damage(dict(toolkit.files), found, digests() if deep else None)


def lines(host: Host, toolkit: ToolkitRow) -> Iterator[tuple[str, str, bool]]:
    """Yield, for ``status``, where the host's own programs are that are used in place, or are missing."""
    programs = programs_in_place(dict(toolkit.files))
    for place in dict.fromkeys(path.parent for path in programs):
        yield str(place), "the toolkit of a package manager's is used where it is", True
    for path in programs:
        if not host.exists(path):
            yield str(path), "missing: install its package again, or install from another source", False
