"""FIFOs among the files read by an engine while it loads: the engine would wait for a writer for ever."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.errors import InstallerError
from installer.model.engine import HostReader, LoadError
from installer.model.files import Kind

CDI_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
CDI_SUFFIXES: Final = frozenset((".json", ".yaml"))


def find_cdi_pipes(host: HostReader, directories: Iterable[str], what: str) -> Iterator[LoadError]:
    """Yield an error for each FIFO named like a CDI specification.

    The library of CDI, shared by containerd and CRI-O, opens each name of this kind in its directories.

    Args:
        host: the host.
        directories: the engine's directories for CDI specifications.
        what: the engine's failure at the FIFO, as the beginning of the error.
    """
    for directory in map(PurePosixPath, directories):
        for name in list_names(host, directory):
            path = directory / name
            if path.suffix in CDI_SUFFIXES and is_pipe(host, path):
                yield make_error(path, what)


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
