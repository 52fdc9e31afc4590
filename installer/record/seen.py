"""What ``run`` has last seen of the node, in a file beside its pidfile: ``status`` asks no engine."""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Self

from installer.decide.data import dataclass, field, fields_of, replace
from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.decide.inode import File
from installer.host.boot import boot_id, runs
from installer.host.files import Host
from installer.host.supervision import own_pid
from installer.record import ready
from installer.record.texts import told_by_root

VERSION = 1


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """One engine at the last look: whether it served our runtimes, since when, and what it served otherwise.

    ``serves`` is None where it was not asked. ``process`` is where this process finds its own below /proc, ""
    where that is not seen. ``refused`` is why it would not come up with the configs that lie there now.
    ``containerd`` and ``monitor`` are what was below it (``below.Below``).
    """

    name: str
    serves: bool | None = None
    since: str = ""
    differs: str = ""
    process: str = ""
    refused: str = ""
    containerd: str = ""
    monitor: str = ""

    @property
    def refusal(self) -> InstallerError | None:
        """What becomes of that at its next start."""
        if not self.refused:
            return None
        return InstallerError(
            f"start {ENGINES[self.name].title} again with the configs that it has now ({self.refused})",
            remedy="correct them before its next start: it serves until then",
            code="config-refused",
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """A look at the node: who has looked and when, what he did, and what is not as it should be.

    ``number`` counts the looks, ``began_s`` is when this one began (on the clock that ``now_s`` reads), and
    ``asked`` says that somebody wanted it. ``doing`` are the steps that are under way, ``did`` those that are
    done. ``problem`` and ``remedy`` are "" where all is well. ``by_cdi`` is that no engine has a runtime of
    ours, ``ignores`` that drift keeps no node from being ready, ``hands_over_to`` the runtime that ours
    start, "" where it was never found. ``unmade`` and ``unmade_remedy`` are how nvidia-ctk has failed
    although a driver is loaded, "" where it has not. The rest is what the next decision needs.
    """

    boot_id: str = ""
    pid: int = 0
    time: str = ""
    plan: str = ""
    number: int = 0
    began_s: float = 0.0
    asked: bool = False
    engines: tuple[EngineSeen, ...] = ()
    doing: tuple[str, ...] = ()
    did: tuple[str, ...] = ()
    code: str = ""
    problem: str = ""
    remedy: str = ""
    by_cdi: bool = False
    until_s: float = 0.0
    failures: int = 0
    signs: str = ""
    looks: tuple[float, ...] = ()
    repairs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ignores: bool = False
    hands_over_to: str = ""
    unmade: str = ""
    unmade_remedy: str = ""

    @property
    def current(self) -> bool:
        """Whether the process that has looked still waits, in this boot."""
        return self.boot_id == boot_id() and runs(self.pid)

    @property
    def over(self) -> bool:
        """Whether nothing of it is under way any more."""
        return not self.doing

    @property
    def error(self) -> InstallerError | None:
        """What is not as it should be."""
        code: Any = self.code
        return InstallerError(self.problem, remedy=self.remedy, code=code) if self.problem else None

    @property
    def generation(self) -> InstallerError | None:
        """Why there is no new specification of the GPUs: the one that is there, if one is, still holds."""
        if not self.unmade:
            return None
        return InstallerError(self.unmade, remedy=self.unmade_remedy, code="cdi-failed")

    def with_generation(self, error: InstallerError | None) -> Self:
        """Return the look with why there is no new specification."""
        return replace(
            self, unmade=error.problem if error else "", unmade_remedy=str(error.remedy) if error else ""
        )

    def with_failure(self, before: "Seen", signs: str) -> Self:
        """Return a look that has failed; where ``signs`` of engines tell of a start its pauses begin anew.

        One that starts again and again is looked at like a file that somebody writes all the time.
        """
        came = bool(before.failures) and signs != before.signs
        failures = 1 if came or self.asked else before.failures + 1  # who asks, too: the cause may go soon
        looks = (*self.looks, self.began_s) if came else self.looks
        return replace(self, failures=failures, signs=signs, looks=looks)

    def with_error(self, error: InstallerError | None) -> Self:
        """Return the look with what is not as it should be."""
        if error is None:
            return replace(self, code="", problem="", remedy="", until_s=0.0)
        return replace(self, code=error.code, problem=error.problem, remedy=str(error.remedy))


def now_s() -> float:
    """Return the moment on a clock that only runs on, and that is the same for all processes of this boot."""
    return time.monotonic()


def clock(moment_s: float) -> str:
    """Return a moment of ``now_s`` as people tell it."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time.time() - time.monotonic() + moment_s))


def stamp() -> str:
    """Return this moment as it stands in files."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read(host: Host, path: PurePosixPath) -> Seen | None:
    """Return the last look; None where there is none, or it cannot be read, or is not root's."""
    try:
        said = told_by_root(host, path)
        if said.pop("version") != VERSION:
            return None
        engines = tuple(EngineSeen(**each) for each in said.pop("engines"))
        repairs = {str(name): tuple(map(float, times)) for name, times in said.pop("repairs").items()}
        lists: dict[str, Any] = {name: tuple(said.pop(name)) for name in ("doing", "did", "looks")}
        return Seen(engines=engines, repairs=repairs, **lists, **said)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def publish(host: Host, path: PurePosixPath, seen: Seen) -> None:
    """Put a look in the place of the one before."""
    said = replace(seen, boot_id=boot_id(), pid=own_pid(), time=stamp())
    host.replace(
        path, File(json.dumps({"version": VERSION, **fields_of(said)}, default=fields_of).encode() + b"\n")
    )


def of_this_boot(host: Host, path: PurePosixPath) -> Seen:
    """Return the last look of this boot; the first one where there was none."""
    found = read(host, path)
    return found if found is not None and found.boot_id == boot_id() else Seen()


def remove(host: Host, path: PurePosixPath) -> None:
    """Remove the file; one of somebody else's with that name stays."""
    ready.remove(host, path)


def with_since(engines: Iterable[EngineSeen], before: Iterable[EngineSeen]) -> tuple[EngineSeen, ...]:
    """Return the engines, each with the moment since when it is so: that of ``before`` where it was."""
    known = {each.name: each for each in before}
    return tuple(
        replace(each, since=last.since)
        if (last := known.get(each.name)) is not None and last.serves == each.serves and last.since
        else replace(each, since=stamp())
        for each in engines
    )
