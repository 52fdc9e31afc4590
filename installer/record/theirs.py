"""What is not ours any more, whatever the ledger says: another toolkit stands in the place of ours."""

from pathlib import PurePosixPath

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.engines.model import OUR_BINARIES
from installer.decide.inode import Kind
from installer.decide.layout import Layout
from installer.decide.parts.cdi import OWNER
from installer.decide.parts.toolkit import ADOPTED, VERSIONS
from installer.decide.rows import Record
from installer.host.files import Host
from installer.host.inodes import changed_s


def is_theirs(host: Host, layout: Layout) -> bool:
    """Tell whether the programs at the toolkit's name are not those that we have installed."""
    if (host.link_target(layout.toolkit) or "").startswith(VERSIONS):
        return False
    if not any(host.kind(layout.toolkit / name) is Kind.FILE for name in OUR_BINARIES):
        return False
    return not host.resolve(layout.toolkit).is_relative_to(host.resolve(layout.home))


def still_ours(host: Host, layout: Layout, held: Record) -> Record:
    """Return the rows without those of runtimes that start the toolkit of another installer by now.

    NVIDIA's writes the same keys with the same values: what they name tells whose they are. Its specification
    is the same, too (engine-facts.md#nvidia-ctk-cdi), and names its hook: the time of the write tells.
    """
    if held.toolkit is None or held.toolkit.version == ADOPTED or not is_theirs(host, layout):
        return held
    since_s = changed_s(host.local_path(layout.toolkit))
    specifications = (row for row in held.configs if row.engine == OWNER)
    return replace(
        held,
        toolkit=None,
        engines=(),
        configs=tuple(row for row in specifications if not _changed(host, row.path, since_s)),
        former_engines=(),
        former_configs=(),
        left="",
    )


def former_defaults(held: Record) -> dict[PurePosixPath, str]:
    """Return the default runtime that each config had before ours, where it had another one."""
    return {
        row.path: str(edit.before).strip("\"'")
        for row in held.configs
        for edit in row.edits
        if row.engine in ENGINES and edit.key[-1:] == (ENGINES[row.engine].default_key,)
        if edit.before not in {None, edit.after}
    }


def _changed(host: Host, path: PurePosixPath, since_s: float) -> bool:
    return host.kind(path) is Kind.FILE and changed_s(host.local_path(path)) >= since_s
