"""An exception that nobody expected ends as every error does: rolled back, remembered, said in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from installer.decide.errors import InstallerError, InternalError


@contextmanager
def internal_errors() -> Iterator[None]:
    """Let whatever the block raises be an InstallerError, and log where an unexpected exception came from.

    Raises:
        InternalError: in the place of any exception that is no InstallerError.
    """
    try:
        yield
    except InstallerError:
        raise
    except Exception as error:
        internal = InternalError(error)
        if internal.code == "no-memory":  # the sentence says all, and there is nothing to report
            raise internal from error
        from installer.host.events import log

        log.error("internal error", kind=internal.kind, frames=list(internal.frames))
        raise internal from error
