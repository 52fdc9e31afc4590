"""Our own directory, opened before anything in it is believed."""

import errno
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.layout import Layout
from installer.host.kernel import trusted_uids

LEDGER: Final = Layout().ledger.name


def open_home(local: Path, path: PurePosixPath) -> int | None:
    """Open our own directory; None where it has gone.

    Raises:
        InstallerError: it is no directory, or another user's and never ours.
    """
    try:
        fd = os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        raise InstallerError(
            f"use {path} (it is not a directory but a link or a file)",
            remedy="move it away, then run again",
            code="install-dir-unusable",
        ) from error
    if os.fstat(fd).st_uid not in trusted_uids() and not _holds_a_ledger_of_roots(fd):
        os.close(fd)
        raise InstallerError(
            f"use {path} (it belongs to another user)",
            remedy=f"move it away; or if it was ours, and its ledger names only that: chown -R root {path}",
            code="install-dir-unusable",
        )
    return fd


def _holds_a_ledger_of_roots(directory: int) -> bool:
    """Tell whether it was ours before somebody gave it away; the ledger itself is checked when it is read."""
    with suppress(OSError):
        return os.stat(LEDGER, dir_fd=directory, follow_symlinks=False).st_uid in trusted_uids()
    return False
