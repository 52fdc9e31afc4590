"""Where ``run`` answers with metrics while it waits."""

from pathlib import PurePosixPath

from installer.decide.data import dataclass


@dataclass(frozen=True, slots=True)
class Listen:
    """Where metrics are asked for: a unix socket at a ``path`` of the host, or an address and a port."""

    path: PurePosixPath | None = None
    address: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.address}:{self.port}"
