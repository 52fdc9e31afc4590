"""What ``run`` tells beside its pidfile: readiness, while engines are proven to serve, and its last check."""

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
from installer.host.locks import is_held_pidfile
from installer.host.supervision import own_pid
from installer.model.facts import Record
from installer.model.files import File, Kind, dumps


class Ready(Struct, frozen=True):
    """What the file says, and among other things that of a check."""

    # ``probe`` compares the beginning of its text: boot and pid stay its first fields.
    boot_id: str
    pid: int
    plan: str
    engines: tuple[Any, ...]  # names; of a check, what it saw of each
    time: str


def publish(host: Host, path: PurePosixPath, record: Record) -> None:
    """Say that everything in the ledger is in force since now, in this boot, by this process."""
    plan = hashlib.sha256(ledger.dumps(record)).hexdigest()
    host.replace(path, File(dumps(Ready(boot_id(), own_pid(), plan, record.served, stamp()))))


def remove(host: Host, path: PurePosixPath) -> None:
    """Say that nothing is proven any more; another program's file with that name stays."""
    if _is_ours(host, path):
        host.remove(path)


def refuse_foreign(host: Host, path: PurePosixPath) -> None:
    """Raise InstallerError where what has the name of a readiness file is none."""
    if host.exists(path) and not _is_ours(host, path):
        problem = f"publish readiness in {path} (it is another program's file)"
        remedy = Remedy("move it away, or choose a ", Option("pid-file"), " in another directory")
        raise InstallerError(problem, remedy=remedy, code="name-taken")


def _is_ours(host: Host, path: PurePosixPath) -> bool:
    return host.kind(path, last=False) is Kind.FILE and read_json_of_root(host, path, Ready) is not None


def is_ready(host: Host, path: PurePosixPath, pid_file: PurePosixPath) -> bool:
    """Tell whether readiness was published in this boot, by the process that holds the pidfile."""
    said = read_json_of_root(host, path, Ready)
    if said is None or said.boot_id != boot_id() or not is_held_pidfile(host.local_path(pid_file)):
        return False
    held = host.read(pid_file)
    return held is not None and held.content.strip() == str(said.pid).encode()


NOT_RUNNING = "it does not run"  # what a stopped engine has in ``differs``


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
        """What becomes of that at its next start."""
        if not self.refused:
            return None
        problem = f"start {ENGINES[self.name].title} again with the configs that it has now ({self.refused})"
        remedy = f"correct them{' before its next start: it serves until then' * bool(self.serves)}"
        return InstallerError(problem, remedy=remedy, code="config-refused")


class LastCheck(Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=1):
    """A check of the node: by which process and when, what it did, and what is not as it should be."""

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
        """What is not as it should be."""
        code: Any = self.code
        return InstallerError(self.problem, remedy=self.remedy, code=code) if self.problem else None

    @property
    def generation(self) -> InstallerError | None:
        """Why there is no new specification of the GPUs: the one that is there, if one is, still holds."""
        error = InstallerError(self.unmade, remedy=self.unmade_remedy, code="cdi-failed")
        return error if self.unmade else None

    @property
    def spoken(self) -> Self:
        """The check in whole sentences."""
        texts = {"problem": self.problem, "unmade": self.unmade}
        return replace(self, **{name: f"cannot {text}" for name, text in texts.items() if text})

    def with_error(self, error: InstallerError | None) -> Self:
        """Return the check with what is not as it should be."""
        if error is None:
            return replace(self, code="", problem="", remedy="", until_s=0.0)
        return replace(self, code=error.code, problem=error.problem, remedy=str(error.remedy))


def clock(moment_s: float) -> str:
    """Return a moment of ``time.monotonic`` as people tell it."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time.time() - time.monotonic() + moment_s))


def stamp() -> str:
    """Return this moment as it stands in files."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read_check(host: Host, path: PurePosixPath) -> LastCheck | None:
    """Return the last check; None where there is none, or it cannot be read, or is not root's."""
    return read_json_of_root(host, path, LastCheck)


def publish_check(host: Host, path: PurePosixPath, seen: LastCheck) -> None:
    """Put a check in the place of the one before."""
    host.replace(path, File(dumps(replace(seen, boot_id=boot_id(), pid=own_pid(), time=stamp()))))


def read_check_of_boot(host: Host, path: PurePosixPath) -> LastCheck:
    """Return the last check of this boot; the first one where there was none."""
    found = read_check(host, path)
    return found if found is not None and found.boot_id == boot_id() else LastCheck()


def add_since(engines: Iterable[EngineCheck], before: Iterable[EngineCheck]) -> tuple[EngineCheck, ...]:
    """Return the engines, each with the moment since when it is so: that of ``before`` where it was."""
    known = {each.name: each for each in before}

    def since(check: EngineCheck) -> str:
        last = known.get(check.name)
        return last.since if last and last.since and last.serves == check.serves else stamp()

    return tuple(replace(each, since=since(each)) for each in engines)
