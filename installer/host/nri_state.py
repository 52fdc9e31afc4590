"""What the NRI plugin tells ``status``, in a file beside its lock: registered or not, and what it missed."""

import json
import os
import time
from pathlib import Path
from typing import Final, Self

from installer.decide.data import dataclass, fields_of, replace
from installer.decide.nri.wishes import Missed

VERSION: Final = 1
LISTED: Final = 100


@dataclass(frozen=True, slots=True)
class State:
    """A plugin and its engine since a moment; ``missed`` are the first of ``missed_in_all``.

    ``problem`` is why it is not registered.
    """

    registered: bool = False
    engine: str = ""
    problem: str = ""
    since: str = ""
    missed: tuple[Missed, ...] = ()
    missed_in_all: int = 0

    def now(self) -> Self:
        """Return it as one that is so since now."""
        return replace(self, since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def publish(path: str, state: State) -> None:
    """Put a state in the place of the one before.

    Raises:
        OSError: it cannot be written.
    """
    said = fields_of(state) | {"version": VERSION, "missed": state.missed[:LISTED]}
    content = json.dumps(said, default=fields_of).encode() + b"\n"
    staged = f"{path}.new"
    # It lies where root alone may write, in a file system of memory: nothing is there to be synced.
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
    Path(staged).replace(path)
