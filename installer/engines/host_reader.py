"""The reading of the host for the load checks of engines."""

from pathlib import PurePosixPath
from typing import NamedTuple

from installer.host.files import Host
from installer.host.programs import is_program
from installer.host.sockets import is_dead
from installer.model.files import File, Kind


class Reader(NamedTuple):
    """The ``HostReader`` of load checks."""

    host: Host

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        """Return the kind of file at a path, behind links unless ``last`` is false."""
        return self.host.kind(path, last=last)

    def read(self, path: PurePosixPath) -> File | None:
        """Read a file; None for a missing file."""
        return self.host.read(path)

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return the names in a directory."""
        return self.host.names(path)

    def is_program(self, path: PurePosixPath) -> bool:
        """Tell whether a file can be executed."""
        return is_program(self.host, path)

    def is_dead(self, path: PurePosixPath) -> bool:
        """Tell whether nothing listens on a socket."""
        return is_dead(self.host.local_path(path))
