"""The toolkit in place: whether it is as it was installed, and the host's own programs that it leads to."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from installer.decide.errors import InstallerError
from installer.decide.integrity import OTHERS_WRITE, damage, programs_in_place
from installer.decide.layout import Layout
from installer.decide.rows import ToolkitRow
from installer.host.digests import NOTES, digests_below
from installer.host.entries import entries
from installer.host.files import Host
from installer.host.kernel import trusted_uids


def noted_digests(host: Host, version: PurePosixPath | None) -> dict[str, str]:
    """Return the digests noted at a version's copy, by marks; none that others than root may have written."""
    with suppress(InstallerError, ValueError):
        file = host.read(version / NOTES) if version else None
        if file is not None and file.meta.uid in trusted_uids() and not file.meta.mode & OTHERS_WRITE:
            return dict(line.split(" ") for line in file.content.decode("ascii").splitlines())
    return {}


def damaged(host: Host, layout: Layout, toolkit: ToolkitRow, *, deep: bool) -> Iterator[tuple[str, str]]:
    """Yield each file of the payload that is not as it was installed; only if ``deep`` are they read."""
    if toolkit.files:
        version = layout.version(toolkit.version)
        with digests_below(host, version if deep else None, {}) as digests:
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
