"""Which digests are known: kept with the version of the toolkit that they are of, and gone with it."""

from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.inode import File, Meta
from installer.decide.integrity import FILE, OTHERS_WRITE
from installer.decide.layout import Layout
from installer.decide.rows import ToolkitRow
from installer.host.digests import Known, settled_mark
from installer.host.files import Host
from installer.host.kernel import trusted_uids
from installer.record.hints import in_place

DIGESTS: Final = PurePosixPath(".config/digests")
PRIVATE: Final = Meta(0o600)


def known_digests(host: Host, layout: Layout) -> Known:
    """Return the digests that an earlier install has kept; none that others than root could have written."""
    with suppress(InstallerError, ValueError):
        version = in_place(host, layout)
        file = host.read(version / DIGESTS) if version else None
        if file is not None and file.meta.uid in trusted_uids() and not file.meta.mode & OTHERS_WRITE:
            return Known(dict(line.split(" ") for line in file.content.decode("ascii").splitlines()))
    return Known({})


def remember(host: Host, layout: Layout, known: Known, toolkit: ToolkitRow | None) -> None:
    """Keep the digests of what is installed now and of its sources: the next start need not read those files.

    Where that cannot be written it reads them.
    """
    version = in_place(host, layout)
    if version is None or toolkit is None:
        return
    now, directory = {**known.sources}, host.local_path(version)
    for name, identity in toolkit.files:
        found = settled_mark(f"{directory}/{name}", wait=True)
        digest = identity.removeprefix(FILE)
        if found and known.installed.get(found, digest) == digest:
            now[found] = digest
    if now != known.before:
        lines = "".join(f"{found} {digest}\n" for found, digest in sorted(now.items()))
        with suppress(InstallerError):
            host.replace(version / DIGESTS, File(lines.encode(), PRIVATE))
