"""The files of ``run`` beside its pidfile: readiness while engines serve, and the last check."""

import hashlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from installer.change import ledger
from installer.engines import ENGINES
from installer.errors import InstallerError, Option, Remedy
from installer.host.files import Host, read_json_of_root
from installer.host.kernel import boot_id
from installer.host.locks import is_pidfile_locked
from installer.host.supervision import own_pid
from installer.model.facts import Record
from installer.model.files import File, Kind, dumps


class Ready(Struct, frozen=True):
    """The content of the readiness file; the file of the last check has the same fields, and more."""

    # ``probe`` compares the beginning of the text: boot and pid stay the first fields.
    boot_id: str
    pid: int
    plan: str
    engines: tuple[Any, ...]  # names; in the file of a check, one ``EngineCheck`` for each
    time: str


def publish(host: Host, path: PurePosixPath, record: Record) -> None:
    """Publish readiness: everything in the ledger is in force, in this boot, by this process."""
    plan = hashlib.sha256(ledger.dumps(record)).hexdigest()
    ready = Ready(boot_id=boot_id(), pid=own_pid(), plan=plan, engines=record.served, time=stamp())
    host.replace(path, File(dumps(ready)))


def remove(host: Host, path: PurePosixPath) -> None:
    """Withdraw readiness; another program's file of that name stays."""
    if _is_ours(host, path):
        host.remove(path)


def refuse_foreign(host: Host, path: PurePosixPath) -> None:
    """Refuse a file at ``path`` that is no readiness file.

    Raises:
        InstallerError: the file is another program's.
    """
    if host.exists(path) and not _is_ours(host, path):
        problem = f"publish readiness in {path} (it is another program's file)"
        remedy = Remedy("move it away, or choose a ", Option("pid-file"), " in another directory")
        raise InstallerError(problem, remedy=remedy, code="name-taken")


def _is_ours(host: Host, path: PurePosixPath) -> bool:
    return host.kind(path, last=False) is Kind.FILE and read_json_of_root(host, path, Ready) is not None


def is_ready(host: Host, path: PurePosixPath, pid_file: PurePosixPath) -> bool:
    """Tell whether readiness was published in this boot, by the process that holds the pidfile."""
    ready = read_json_of_root(host, path, Ready)
    if ready is None or ready.boot_id != boot_id() or not is_pidfile_locked(host.local_path(pid_file)):
        return False
    file = host.read(pid_file)
    return file is not None and file.content.strip() == str(ready.pid).encode()


NOT_RUNNING = "it does not run"  # ``differs`` of a stopped engine


class EngineCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """One engine at the last check: whether it served our runtimes, and since when."""

    name: str
    serves: bool | None = None  # None where it was not asked
    since: str = ""
    differs: str = ""  # what it served otherwise
    process: str = ""  # where this process finds its own below /proc, "" where that is not seen
    refused: str = ""  # why it would not come up with the configs that lie there now
    containerd: str = ""  # as ``dependencies.Dependencies`` has it
    monitor: str = ""
    hook: bool = False  # each of its containers starts our OCI hook: it has no runtime of ours
    program: str = ""  # its own, which its unit starts; "" where that is not known

    @property
    def refusal(self) -> InstallerError | None:
        """The error of the engine's next start with the refused configs."""
        if not self.refused:
            return None
        problem = f"start {ENGINES[self.name].title} again with the configs that it has now ({self.refused})"
        remedy = "correct them"
        if self.serves:
            remedy += " before its next start: it serves until then"
        return InstallerError(problem, remedy=remedy, code="config-refused")


class LastCheck(Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=1):
    """A check of the node, with the process, the time, the done steps and the problem."""

    boot_id: str = ""
    pid: int = 0
    time: str = ""
    plan: str = ""
    number: int = 0  # in this boot
    began_s: float = 0.0  # by ``time.monotonic``
    asked: bool = False  # by ``reconcile``
    engines: tuple[EngineCheck, ...] = ()
    doing: tuple[str, ...] = ()  # the steps that are under way
    did: tuple[str, ...] = ()  # those that are done
    code: str = ""
    problem: str = ""  # "" where all is well
    remedy: str = ""
    by_cdi: bool = False  # no engine has a runtime of ours
    until_s: float = 0.0
    failures: int = 0
    signs: str = ""
    looks: tuple[float, ...] = ()
    repairs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ignores: bool = False  # drift keeps no node from being ready
    hands_over_to: str = ""  # the runtime that ours start, "" where it was never found
    unmade: str = ""  # how nvidia-ctk has failed although a driver is loaded, "" where it has not
    unmade_remedy: str = ""
    edited: tuple[str, ...] = ()  # configs that hold more than we wrote, or did when they were removed

    @property
    def current(self) -> bool:
        """Whether the process that has checked still waits, in this boot."""
        return self.boot_id == boot_id() and Path(f"/proc/{self.pid}").exists()

    @property
    def error(self) -> InstallerError | None:
        """The problem of the node, as an error."""
        if not self.problem:
            return None
        code: Any = self.code
        return InstallerError(self.problem, remedy=self.remedy, code=code)

    @property
    def generation(self) -> InstallerError | None:
        """The error of the last generation of the GPUs' specification; an older specification still holds."""
        if not self.unmade:
            return None
        return InstallerError(self.unmade, remedy=self.unmade_remedy, code="cdi-failed")

    @property
    def spoken(self) -> Self:
        """The check in whole sentences."""
        problem = f"cannot {self.problem}" if self.problem else ""
        unmade = f"cannot {self.unmade}" if self.unmade else ""
        return replace(self, problem=problem, unmade=unmade)

    def with_error(self, error: InstallerError | None) -> Self:
        """Return the check with the problem ``error``; None: without any problem."""
        if error is None:
            return replace(self, code="", problem="", remedy="", until_s=0.0)
        return replace(self, code=error.code, problem=error.problem, remedy=str(error.remedy))


def clock(moment_s: float) -> str:
    """Return a moment of ``time.monotonic`` as the time of day."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time.time() - time.monotonic() + moment_s))


def stamp() -> str:
    """Return this moment in the form of our files."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read_check(host: Host, path: PurePosixPath) -> LastCheck | None:
    """Return the last check; None where the file is missing, damaged or not root's."""
    return read_json_of_root(host, path, LastCheck)


def publish_check(host: Host, path: PurePosixPath, seen: LastCheck) -> None:
    """Replace the last check on the disk."""
    host.replace(path, File(dumps(replace(seen, boot_id=boot_id(), pid=own_pid(), time=stamp()))))


def read_check_of_boot(host: Host, path: PurePosixPath) -> LastCheck:
    """Return the last check of this boot; an empty check where there was none."""
    found = read_check(host, path)
    return found if found is not None and found.boot_id == boot_id() else LastCheck()


def add_since(engines: Iterable[EngineCheck], before: Iterable[EngineCheck]) -> tuple[EngineCheck, ...]:
    """Return the engines, each with the begin of the present state.

    Args:
        engines: the engines at this check.
        before: the engines at the last check; an engine in the same state keeps the begin.
    """
    known = {each.name: each for each in before}
    checks: list[EngineCheck] = []
    for check in engines:
        last = known.get(check.name, EngineCheck(check.name))
        is_unchanged = bool(last.since) and last.serves == check.serves
        since = last.since if is_unchanged else stamp()
        checks.append(replace(check, since=since))
    return tuple(checks)
