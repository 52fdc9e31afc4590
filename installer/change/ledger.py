"""The ledger: what we hold on this node, on the host's disk before each step that makes it true."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import convert, to_builtins
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.config_files import list_missing_directories, usual_configs
from installer.errors import InstallerError, Option, Remedy, StoppedError, UndoIncompleteError
from installer.host.events import internal_errors
from installer.host.files import Host, entry_of
from installer.host.kernel import trusted_uids
from installer.host.locks import LOCK, Lock, lock_directory
from installer.host.sockets import is_abandoned, is_like_ours
from installer.host.trees import create_tree, remove_staged, remove_tree
from installer.model.facts import OWNER, Record, Saved
from installer.model.files import ANSWER, METRICS, SOCKET, File, Kind, Layout, Meta, Text
from installer.nri import plan as nri
from installer.payload.installed import refuse_foreign_ledger, restore_access

PRIVATE: Final = Meta(0o600)  # rows hold literals of configs, and configs hold registry passwords
VERSION: Final = 1  # of the format, which is read for ever
MARK: Final = "# Written by toolkit-installer, and removed by its uninstall."
# With which the text for --metrics-listen begins, and that of 0.2.0: it has no comments.
OPENMETRICS_MARKS: Final = ("# HELP toolkit_installer ", "# TYPE toolkit_installer info")
MARKS: Final = tuple(each.encode() for each in (MARK, *OPENMETRICS_MARKS))
# What 0.2.0 looks for. It refuses what it does not know: any other field is left out where it is empty.
ALWAYS: Final = frozenset(
    {"finished", "failed", "directories", "nodes", "pid_file", "toolkit", "engines", "configs"}
)


def read_record(host: Host, layout: Layout) -> Record | None:
    """Return what is held, without a lock, None without a ledger; InstallerError: it cannot be understood."""
    file = host.read(layout.ledger)
    if file is None:
        return None
    refuse_foreign_ledger(layout.ledger, file)
    try:
        return loads(file.content)
    except ValueError as error:
        raise InstallerError(
            f"understand the ledger {layout.ledger} ({error})",
            remedy="if a newer version wrote it, use that one; else move it away and run uninstall: it "
            f"removes our keys, and puts old copies of configs into {layout.unclaimed}",
            code="ledger-unusable",
        ) from error


def is_ledger_lost(host: Host, layout: Layout) -> bool:
    """Tell whether the ledger was removed: its directory comes and goes with it, in one rename."""
    return not host.exists(layout.ledger) and bool(set(host.names(layout.home)) - {LOCK})


class Ledger:
    """The ledger of one install-dir, locked against a second instance while this lives."""

    def __init__(self, host: Host, layout: Layout, lock: Lock, record: Record) -> None:
        self._host, self._layout, self.lock = host, layout, lock
        self.held, self.gone = record, False
        self.stays = False  # though it holds nothing: another process goes on
        self._was_lost = is_ledger_lost(host, layout)
        self.reloaded: list[str] = []  # engines, each time that this process has made one read its configs

    @classmethod
    def open(
        cls,
        host: Host,
        layout: Layout,
        inherited: Sequence[int] = (),
        check: Callable[[], None] = lambda: None,
    ) -> "Ledger":
        """Lock the ledger, making its directory where there is none.

        ``inherited`` are the descriptors of the locks that this process held before an exec; ``check`` is
        called before each try and may raise. LockedError where another instance holds it, InstallerError
        where the directory cannot be made, or the ledger cannot be understood.
        """
        lock = None
        while lock is None:  # its directory was removed by who held it
            check()
            _make_home(host, layout)
            lock = lock_directory(host, layout.home, inherited)
            inherited = ()
        try:
            held = read_record(host, layout) or Record()
            restore_access(host, layout, held)
        except Exception:
            lock.release()
            raise
        return cls(host, layout, lock, held)

    def sweep(self) -> None:
        """Remove what a killed run left beside the files that it was about to replace."""
        layout = self._layout
        ours = (layout.toolkit, layout.ledger, layout.counts, layout.made, layout.replaced)
        for path in (*ours, *(row.path for row in self.held.configs)):
            self._host.sweep(path)
        for path in (layout.replaced, layout.home, *layout.home.parents[:-1]):
            remove_staged(self._host, path)
        remove_tree(self._host, layout.check)

    def _set_copies_aside(self) -> None:
        """Move the saved copies of a lost ledger out of the way of the rows to come.

        A verb that fails before it writes leaves them where they are.
        """
        host, layout = self._host, self._layout
        if not is_ledger_lost(host, layout):
            return
        for name in host.names(layout.backups):
            host.make_directory(layout.unclaimed, 0o700)
            host.rename(layout.backups / name, layout.unclaimed / name)

    @property
    def is_as_found(self) -> bool:
        """Whether the ledger was lost before this process came, and nothing was written since."""
        return self._was_lost and is_ledger_lost(self._host, self._layout)

    def write(self, record: Record) -> None:
        """Put the rows on the disk; the same rows again cost nothing."""
        self._set_copies_aside()
        if record != self.held or self._host.kind(self._layout.ledger) is Kind.ABSENT:
            try:
                self._host.replace(self._layout.ledger, File(dumps(record), PRIVATE))
            except Exception:
                # It may stand there all the same, and only not be safe from a power failure.
                self.held = read_record(self._host, self._layout) or self.held
                raise
            self.held = record

    def save(self, files: Iterable[File]) -> None:
        """Put the bytes of ``files`` beside the ledger, by digest."""
        self._set_copies_aside()
        for file in files:
            if read_saved(self._host, self._layout, Saved.of(file)) is None:
                backup = self._layout.backups / file.digest
                self._host.make_directory(self._layout.backups, 0o700)
                if self._host.link_target(backup) is not None:  # replace would write where it leads
                    self._host.remove(backup)
                self._host.replace(backup, File(file.content, PRIVATE))

    def drop_backups(self) -> None:
        """Remove the saved bytes that no row names, and directories that hold nothing any more."""
        named = {row.original.digest for row in self.held.configs if row.original}
        for name in self._host.names(self._layout.backups):
            if name not in named:
                self._host.remove(self._layout.backups / name)
        for directory in (self._layout.backups, self._layout.versions):
            if not self._host.names(directory):
                self._host.remove_directory(directory)

    def make_directories(self, path: PurePosixPath) -> None:
        """Make ``path`` and what is missing above it, recorded so that undo removes them again."""
        missing = sorted(
            list_missing_directories(self._host, [path / "any"]), key=lambda each: len(each.parts)
        )
        if not missing:
            return
        known = dict.fromkeys((*self.held.directories, *missing))
        self.write(replace(self.held, directories=tuple(known)))
        for each in missing:
            self._host.make_directory(each)

    def remove(self) -> None:
        """Remove the ledger and all directories of ours: nothing is held any more.

        The last of them lose their names in one rename, so that no directory of ours is ever
        without the ledger that says whose it is, and no row without the saved copy that it names.
        Nothing is written: we can be removed from a full disk. InstallerError: something that is not ours is
        among them.
        """
        host, layout = self._host, self._layout
        self._set_copies_aside()
        for path in self.held.published:
            remove_published(host, path)
        host.remove_directory(layout.versions)
        own = {layout.ledger.name, layout.counts.name, layout.made.name, layout.backups.name, LOCK}
        own |= {layout.replaced.name} if host.link_target(layout.replaced) is not None else set()
        self._refuse_unclaimed()
        others = [name for name in host.names(layout.home) if name not in own]
        if others:
            problem = f"remove {layout.home} (it still holds {', '.join(others)})"
            remedy = "move that to where it belongs, then run uninstall again"
            raise InstallerError(problem, remedy=remedy, code="name-taken")
        made = sorted(self.held.directories, key=lambda path: -len(path.parts))
        for path in made:
            if path not in layout.home.parents:
                host.remove_directory(path)
        _remove_upwards(host, layout.home, [path for path in made if path in layout.home.parents])
        self.held, self.gone = Record(), True

    def _refuse_unclaimed(self) -> None:
        """Remove the copies of a lost ledger's that stand in a config again, and raise for the others."""
        unclaimed = self._layout.unclaimed
        if not self._host.exists(unclaimed):
            return
        usual = {path for engine in ENGINES.values() for path in usual_configs(self._host, engine)}
        for path in usual | {row.path for row in self.held.configs}:
            with suppress(InstallerError):  # what cannot be read is none of them
                if file := self._host.read(path):
                    self._host.remove(unclaimed / file.digest)
        if not self._host.remove_directory(unclaimed):
            left = ", ".join(self._host.names(unclaimed))
            problem = f"match the saved configs in {unclaimed} to engines (their ledger is lost: {left})"
            remedy = "compare them with the engines' configs, move them away, then run uninstall again"
            raise InstallerError(problem, remedy=remedy, code="backup-lost")


def publish(host: Host, path: PurePosixPath, text: str) -> None:
    """Put ``text`` at ``path`` by a rename; InstallerError: it cannot be, or others have that name."""
    flags = {METRICS: Option("metrics-textfile"), ANSWER: Option("metrics-listen")}
    flag = flags.get(path.suffix, Option("nfd-features"))
    # Another program's directory that goes and comes again is one that node_exporter and NFD lose.
    if host.kind(path.parent) is not Kind.DIRECTORY:
        problem = f"write {path} (there is no directory {path.parent})"
        remedy = Remedy("make it, or name the one that is read with ", flag)
        raise InstallerError(problem, remedy=remedy, code="file-operation-failed")
    if is_foreign(host, path):
        remedy = Remedy("move it away, or choose another path with ", flag)
        raise InstallerError(f"write {path} (it is another program's file)", remedy=remedy, code="name-taken")
    file = File(text.encode(errors="replace"))
    found = host.read(path)
    if found is None or found.content != file.content:
        host.replace(path, file)


def remove_published(host: Host, path: PurePosixPath) -> None:
    """Remove a file or a socket of ours; anything else stays. Raises InstallerError: it cannot be removed."""
    if is_foreign(host, path):  # a link of a stranger's is not followed
        return
    host.sweep(path)
    if path.suffix != SOCKET or is_abandoned(host.local_path(path, last=False)):
        host.remove(path)


def is_foreign(host: Host, path: PurePosixPath) -> bool:
    """Tell whether something stands at ``path`` that is not from us."""
    if path.suffix == SOCKET or not host.exists(path):
        return host.exists(path) and not is_like_ours(host.local_path(path, last=False))
    entry = entry_of(host, path)
    if host.kind(path, last=False) is not Kind.FILE or entry is None or not entry.owned:
        return True  # a stranger's is not read, for it may have any size
    file = host.read(path)
    return file is None or file.meta.uid not in trusted_uids() or not file.content.startswith(MARKS)


@contextmanager
def hold(opening: Callable[[], Ledger]) -> Iterator[Ledger]:
    """Hold the ledger that ``opening`` opens; InternalError: in the place of what is no InstallerError."""
    with internal_errors():
        ledger = opening()
        try:
            with internal_errors():
                ledger.sweep()
                yield ledger
        finally:
            _release(ledger)


def _release(ledger: Ledger) -> None:
    """Unlock; a ledger that holds nothing leaves no trace. UndoIncompleteError: it could not be removed."""
    failure = sys.exception()
    try:
        with internal_errors():
            # Published files tell of a failure; once it is gone, its name may be the next instance's.
            tells = ledger.held.published and not isinstance(failure, StoppedError)
            # What is left of a lost ledger is no trace of a verb that failed before it wrote anything.
            is_as_before = failure is not None and ledger.is_as_found
            if ledger.held.empty and not (tells or ledger.gone or ledger.stays or is_as_before):
                ledger.remove()
    except InstallerError as error:
        reason = f" after a failure ({failure})" if failure else ""
        if not isinstance(failure, UndoIncompleteError):
            raise UndoIncompleteError(
                f"remove the empty ledger{reason}: {error.problem}", remedy=error.remedy, code=error.code
            ) from error
    finally:
        ledger.lock.release()


def _remove_upwards(host: Host, top: PurePosixPath, made: Iterable[PurePosixPath]) -> None:
    """Remove ``top`` with all below it, and the directories of ``made`` above that hold nothing else."""
    above = list(made)
    # In one rename, as far as that goes: one that was moved, and linked to, goes where it is, then the link.
    while above and host.names(above[0]) == (top.name,):
        top = above.pop(0)
        if host.link_target(top) is not None:
            break
    remove_tree(host, host.resolve(top))
    if host.link_target(top) is not None:
        host.remove(top)
        for path in above:
            host.remove_directory(path)


def read_saved(host: Host, layout: Layout, saved: Saved | None) -> File | None:
    """Return a file as it was saved; None where there was none, or the copy is missing or is not that."""
    with suppress(InstallerError):  # something else has its name
        file = host.read(layout.backups / saved.digest) if saved else None
        if saved and file is not None and file.digest == saved.digest:
            return File(file.content, saved.meta)
    return None


def _make_home(host: Host, layout: Layout) -> None:
    """Make the ledger's directory, and what is missing above it, with a first ledger in it, in one rename."""
    missing = [path for path in (layout.home, *layout.home.parents) if not host.exists(path)]
    if not missing:
        return
    first = missing[-1]
    held = Record(directories=tuple(reversed(missing[1:])))
    ledger = Text(layout.ledger.relative_to(first), dumps(held).decode(), PRIVATE.mode)
    lock = Text(layout.home.relative_to(first) / LOCK, "", PRIVATE.mode)
    create_tree(host, first, [ledger, lock])


def dumps(record: Record) -> bytes:
    """Return the rows as JSON that a person can read."""
    rows = {"version": VERSION, **to_builtins(record, enc_hook=str)}
    rows["nodes"] = dict(rows["nodes"])
    rows = {name: value for name, value in rows.items() if value or name in ALWAYS}
    # A path that is no UTF-8 holds lone surrogates; their escapes are JSON too.
    return json.dumps(rows, indent=1, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def loads(content: bytes) -> Record:
    """Return the rows that ``dumps`` wrote. Raises ValueError: these are not rows of a version known here."""
    try:
        rows = json.loads(content.decode(), parse_int=_whole)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        raise ValueError(
            f"it is damaged or cut off: {place}" if content.strip() else "it is empty"
        ) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if isinstance(rows, dict):
        if (version := rows.pop("version", None)) != VERSION:
            raise ValueError(f"it is of version {version!r:.20}, and {VERSION} is known here")
        rows.pop("former", None)  # of 0.2.0: what an undo had taken, which has no reader
        if isinstance(nodes := rows.get("nodes"), dict):
            rows["nodes"] = [*nodes.items()]
    held = convert(rows, Record, dec_hook=_path)
    owners = {row.engine for row in held.configs}
    for name in (*({*held.served} - {*ENGINES}), *(owners - {*ENGINES, OWNER, nri.ID})):
        raise ValueError(f"the engine {name[:40]} is unknown here")
    return held


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError as error:
        raise ValueError("it holds a number of more than 4300 digits") from error


def _path(kind: type, value: Any) -> PurePosixPath:
    path = kind(value) if isinstance(value, str) else None
    if path is None or not path.is_absolute() or ".." in path.parts or "\0" in value:
        raise ValueError(f"the path {value!r:.100} is not absolute")
    return PurePosixPath(path)
