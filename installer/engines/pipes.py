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


def find_pipe(host: HostReader, path: PurePosixPath, what: str) -> LoadError | None:
    """Find a FIFO at a path, or a path that may be one because this process cannot look at it.

    Args:
        host: the host.
        path: a path that the engine would open.
        what: the engine's failure, as the beginning of the error.
    """
    try:
        kind = host.kind(path)
    except InstallerError as error:
        return make_unknown(f"{path} is a FIFO", path, what, error.problem)
    if kind is Kind.FIFO:
        return LoadError(f"{what}: {path} is a FIFO, where it would wait for ever", f"remove {path}")
    return None


def make_unknown(condition: str, path: PurePosixPath, what: str, problem: str) -> LoadError:
    """Make the error of an engine that would not load under a condition that this process cannot tell.

    Args:
        condition: the condition, as a sentence.
        path: the path that the engine would open.
        what: the engine's failure, as the beginning of the error.
        problem: why the condition cannot be told, as the problem of an ``InstallerError``.
    """
    reason = f"{what} if {condition}, and this process cannot {problem}"
    return LoadError(reason, f"replace {path} by a small regular file, or remove it")
