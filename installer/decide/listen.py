"""Where ``run`` answers with metrics while it waits."""

from pathlib import PurePosixPath

from installer.decide.data import dataclass
from installer.decide.errors import UsageError


@dataclass(frozen=True, slots=True)
class Listen:
    """Where metrics are asked for: a unix socket at a ``path`` of the host, or an address and a port.

    Raises:
        UsageError: the socket has a name that others may have for something else.
    """

    path: PurePosixPath | None = None
    address: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        if self.path and self.path.suffix != ".sock":
            raise UsageError(f"listen on {self}", remedy="give a socket that is named *.sock")

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.address}:{self.port}"
