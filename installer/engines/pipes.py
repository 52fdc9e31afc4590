"""FIFOs among the files read by an engine while it loads: the engine would wait for a writer for ever."""

from contextlib import suppress
from pathlib import PurePosixPath

from installer.errors import InstallerError
from installer.model.engine import HostReader, LoadError
from installer.model.files import Kind


def list_names(host: HostReader, directory: PurePosixPath) -> tuple[str, ...]:
    """List the names in a directory, none for an unreadable directory."""
    with suppress(InstallerError):
        return host.names(directory)
    return ()


def is_pipe(host: HostReader, path: PurePosixPath) -> bool:
    """Tell whether a FIFO is at a path; False if unknown."""
    with suppress(InstallerError):
        return host.kind(path) is Kind.FIFO
    return False


def make_error(path: PurePosixPath, what: str) -> LoadError:
    """Make the error of an engine waiting at a FIFO."""
    return LoadError(f"{what}: {path} is a FIFO, where it would wait for ever", f"remove {path}")
