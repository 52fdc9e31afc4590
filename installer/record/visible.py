"""Whether an engine finds our runtimes where its config names them: its root may be another than ours."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts
from installer.decide.inode import Kind
from installer.host.files import Host

ROOT: Final = PurePosixPath("/")


def refuse_unseen(engine: EngineFacts, binaries: Iterable[PurePosixPath]) -> None:
    """Raise where the engine would not find our runtimes: nobody complains before a container is started.

    Raises:
        InstallerError: always in that case.
    """
    if engine.pid is None:
        return
    for path in binaries:
        try:
            theirs = Host.under(PurePosixPath(f"/proc/{engine.pid}/root"))
            there = not theirs.names(ROOT) or theirs.kind(path) is Kind.FILE
        except InstallerError:  # without CAP_SYS_PTRACE nobody looks into another process's root
            return
        if not there:
            raise InstallerError(
                f"configure {engine.title} ({path} is not there for pid {engine.pid}, which looks elsewhere)",
                remedy=Remedy(
                    "make ",
                    Option("install-dir"),
                    ", or the mount that holds it, the directory that the host sees",
                ),
                code="toolkit-not-visible",
            )
