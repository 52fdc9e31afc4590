"""What happens to a node, told line by line with the times it took."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.engines.nodes import Node

STORY = "line of a node's story"


@dataclass
class Story:
    """The story of one node; a line is what has just been seen, and how often the engine was restarted."""

    node: Node
    record: Callable[[str, str], None]
    _began: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)
    _pid: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        self._pid = self.node.pid_of(f"{self.node.engine}.service")

    def tell(self, line: str) -> None:
        """Add a line; the time is that since the line before."""
        now = time.monotonic()
        if (pid := self.node.pid_of(f"{self.node.engine}.service")) != self._pid:
            self._pid, self.restarts = pid, self.restarts + 1
        took, self._last = now - self._last, now
        self.record(STORY, f"{now - self._began:6.1f} s  +{took:5.2f} s  {line}")
