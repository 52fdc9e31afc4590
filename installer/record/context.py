"""Where a plan is carried out, and for how long."""

from math import inf
from time import monotonic

from installer.decide.data import dataclass
from installer.decide.layout import Layout
from installer.decide.options import RestartMode
from installer.host.files import Host
from installer.record.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Context:
    """Where a plan is carried out; ``hurried`` where a pod's grace is running out.

    ``until_s`` is when it has to be over, on the clock that only goes on. ``rolls_back`` tells that it takes
    back what another plan has begun; ``restart_mode`` says whether engines are restarted only when idle.
    """

    host: Host
    layout: Layout
    ledger: Ledger
    timeout_s: float
    until_s: float = inf
    rolls_back: bool = False
    restart_mode: RestartMode = RestartMode.AUTO

    @property
    def hurried(self) -> bool:
        """Whether a pod's grace is running out."""
        return self.until_s < inf

    @property
    def patience_s(self) -> float:
        """For how long a step may wait that begins now."""
        return max(1.0, min(self.timeout_s, self.until_s - monotonic()))
