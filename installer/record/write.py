"""How one config is written, and removed, with the symbolic links that lead to it."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from installer.decide.errors import ConflictError
from installer.decide.inode import Kind
from installer.decide.rows import ConfigRow
from installer.decide.steps import WriteConfig
from installer.host.files import Host


def write_config(host: Host, step: WriteConfig) -> None:
    """Write or remove a config.

    Raises:
        ConflictError: somebody else has written it since it was read.
    """
    now = host.read(step.path)
    digest = now and now.digest
    if digest == (step.after and step.after.digest) and (now is None) == (step.after is None):
        return
    if digest != (step.before and step.before.digest):
        raise ConflictError(
            f"edit {step.path} (somebody else wrote it in this very moment)", remedy="run again"
        )
    if step.after is None:
        real = host.resolve(step.path)  # a link that led nowhere before us stays
        if step.link:
            host.remove(step.path)  # first: an engine that starts now would not read a link to nowhere
        host.remove(real)
        return
    if step.link and now is None:
        host.link(step.path, step.link)
    host.replace(step.path, step.after)


def linked_since(host: Host, rows: Iterable[ConfigRow]) -> dict[PurePosixPath, str]:
    """Return what the symbolic links hold that somebody has put in the place of files we created.

    Of a link that leads nowhere nobody knows whether it led to our file.
    """
    found = {}
    for row in rows:
        created = host.resolve(row.path.parent) / row.path.name
        link = host.link_target(row.path) if row.original is None and row.target in {None, created} else None
        if link is not None and host.kind(row.path) is Kind.FILE:
            found[row.path] = link
    return found
