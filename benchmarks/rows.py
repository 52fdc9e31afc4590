"""One number of the table."""

from typing import NamedTuple


class Row(NamedTuple):
    """A measured number beside its limit; ``theirs`` is what NVIDIA's installer (v1.20.0) takes."""

    name: str
    ours: float
    limit: float
    unit: str
    theirs: str

    @property
    def within(self) -> bool:
        """Whether the limit holds."""
        return self.ours <= self.limit
