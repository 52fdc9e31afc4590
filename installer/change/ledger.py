"""The ledger: the record of our changes to this node, on the host's disk ahead of each change."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
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
from installer.host.own_version import describe_version
from installer.host.sockets import is_abandoned, is_like_ours
from installer.host.trees import create_tree, remove_staged, remove_tree
from installer.model.facts import Owner, Record, Saved
from installer.model.files import ANSWER, METRICS, SOCKET, File, Kind, Layout, Meta, Text
from installer.payload.access import refuse_foreign_ledger, restore_access

PRIVATE: Final = Meta(0o600)  # rows hold literals of configs, and configs hold registry passwords
FORM: Final = 1  # the number of the ledger's form: every later version of this program reads this form
MARK: Final = "# Written by toolkit-installer, and removed by its uninstall."
OPENMETRICS_MARK: Final = "# HELP toolkit_installer "  # the first words of the text for --metrics-listen
MARKS: Final = (MARK.encode(), OPENMETRICS_MARK.encode())
# The fields that a reader always finds. Any other field is left out if empty: an earlier version of this
# program refuses the fields that it does not know.
ALWAYS: Final = frozenset(
    {"finished", "failed", "directories", "nodes", "pid_file", "toolkit", "engines", "configs"}
)


def read_record(host: Host, layout: Layout) -> Record | None:
    """Read the rows of the ledger without a lock; None without a ledger.

    Raises:
        InstallerError: the ledger cannot be understood.
    """
    file = host.read(layout.ledger)
    if file is None:
        return None
    refuse_foreign_ledger(layout.ledger, file)
    try:
        return loads(file.content)
    except ValueError as error:
        raise InstallerError(
            f"understand the ledger {layout.ledger} ({error})",
            remedy="uninstall with the version that wrote it, or move it away and run "
            f"uninstall: that removes our keys, and puts old copies of configs into {layout.unclaimed}",
            code="ledger-unusable",
        ) from error


def is_ledger_lost(host: Host, layout: Layout) -> bool:
    """Tell whether others have removed the ledger: we remove the ledger together with the directory."""
    return not host.exists(layout.ledger) and bool(set(host.names(layout.home)) - {LOCK})


class Ledger:
    """The ledger of one install-dir, locked against a second instance while this lives."""

    def __init__(self, host: Host, layout: Layout, lock: Lock, record: Record) -> None:
        self._host = host
        self._layout = layout
        self.lock = lock
        self.record = record
        self.gone = False
        self.stays = False  # an empty ledger is kept, because another process goes on
        self._was_lost = is_ledger_lost(host, layout)
        self._copies_are_aside = False
        self.reloaded: list[str] = []  # the engine of each reload and restart by this process

    @classmethod
    def open(
        cls,
        host: Host,
        layout: Layout,
        inherited: Sequence[int] = (),
        check: Callable[[], None] = lambda: None,
    ) -> "Ledger":
        """Lock the ledger; make a missing directory of the ledger first.

        Args:
            host: the node.
            layout: the paths below the install-dir.
            inherited: the descriptors of this process's locks from before an exec.
            check: called before each try; may raise.

        Raises:
            LockedError: another instance holds the lock.
            InstallerError: the directory cannot be made, or the ledger cannot be understood.
        """
        lock = None
        while lock is None:  # the last holder of the lock may have removed the directory
            check()
            _make_home(host, layout)
            lock = lock_directory(host, layout.home, inherited)
            inherited = ()
        try:
            record = read_record(host, layout) or Record()
            restore_access(host, layout, record)
        except Exception:
            lock.release()
            raise
        return cls(host, layout, lock, record)

    def sweep(self) -> None:
        """Remove the temporary files of a killed run."""
        layout = self._layout
        ours = (layout.toolkit, layout.ledger, layout.counts, layout.made, layout.replaced)
        for path in (*ours, *(row.path for row in self.record.configs)):
            self._host.sweep(path)
        for path in (layout.replaced, layout.home, *layout.home.parents[:-1]):
            remove_staged(self._host, path)
        remove_tree(self._host, layout.check)

    def _set_copies_aside(self) -> None:
        """Move the saved copies of a lost ledger away, so that no row of a new ledger can name them.

        A verb that fails before a write leaves the copies in place. Done once: copies saved by this process
        before the write of the new ledger belong to the new ledger.
        """
        host = self._host
        layout = self._layout
        if self._copies_are_aside or not is_ledger_lost(host, layout):
            return
        for name in host.names(layout.backups):
            host.make_directory(layout.unclaimed, 0o700)
            host.rename(layout.backups / name, layout.unclaimed / name)
        self._copies_are_aside = True

    @property
    def is_as_found(self) -> bool:
        """Whether the ledger was lost before this process, and nothing was written since."""
        return self._was_lost and is_ledger_lost(self._host, self._layout)

    def write(self, record: Record) -> None:
        """Write the rows to the disk, unless the ledger holds the same."""
        self._set_copies_aside()
        if record != self.record or self._host.kind(self._layout.ledger) is Kind.ABSENT:
            try:
                self._host.replace(self._layout.ledger, File(dumps(record, describe_version()), PRIVATE))
            except Exception:
                # The new ledger may be in place, and only not be safe from a power failure.
                self.record = read_record(self._host, self._layout) or self.record
                raise
            self.record = record

    def save(self, files: Iterable[File]) -> None:
        """Save the bytes of ``files`` beside the ledger, by digest."""
        self._set_copies_aside()
        for file in files:
            if read_saved(self._host, self._layout, Saved.of(file)) is None:
                backup = self._layout.backups / file.digest
                self._host.make_directory(self._layout.backups, 0o700)
                if self._host.link_target(backup) is not None:  # replace would write to the link's target
                    self._host.remove(backup)
                self._host.replace(backup, File(file.content, PRIVATE))

    def drop_backups(self) -> None:
        """Remove saved bytes without a row, and empty directories."""
        named = {row.original.digest for row in self.record.configs if row.original}
        for name in self._host.names(self._layout.backups):
            if name not in named:
                self._host.remove(self._layout.backups / name)
        for directory in (self._layout.backups, self._layout.versions):
            if not self._host.names(directory):
                self._host.remove_directory(directory)

    def make_directories(self, path: PurePosixPath) -> None:
        """Make ``path`` and the missing directories above, and record each for the undo."""
        missing = sorted(
            list_missing_directories(self._host, [path / "any"]), key=lambda each: len(each.parts)
        )
        if not missing:
            return
        known = dict.fromkeys((*self.record.directories, *missing))
        self.write(replace(self.record, directories=tuple(known)))
        for each in missing:
            self._host.make_directory(each)

    def remove(self) -> None:
        """Remove the ledger and all our directories.

        The last directories lose their names in a single rename: none of our directories is ever without the
        ledger, and no row without the saved copy. Nothing is written, so a full disk does not
        matter.

        Raises:
            InstallerError: the ledger's directory holds something foreign.
        """
        host = self._host
        layout = self._layout
        self._set_copies_aside()
        for path in self.record.published:
            remove_published(host, path)
        host.remove_directory(layout.versions)
        own = {layout.ledger.name, layout.counts.name, layout.made.name, layout.backups.name, LOCK}
        if host.link_target(layout.replaced) is not None:
            own.add(layout.replaced.name)
        self._refuse_unclaimed()
        others = [name for name in host.names(layout.home) if name not in own]
        if others:
            problem = f"remove {layout.home} (it still holds {', '.join(others)})"
            remedy = "move that to where it belongs, then run uninstall again"
            raise InstallerError(problem, remedy=remedy, code="name-taken")
        made = sorted(self.record.directories, key=lambda path: -len(path.parts))
        for path in made:
            if path not in layout.home.parents:
                host.remove_directory(path)
        above = [path for path in made if path in layout.home.parents]
        _remove_upwards(host, layout.home, above)
        self.record = Record()
        self.gone = True

    def _refuse_unclaimed(self) -> None:
        """Remove each saved copy of a lost ledger if the saved text is in a config again.

        Raises:
            InstallerError: other copies are left.
        """
        unclaimed = self._layout.unclaimed
        if not self._host.exists(unclaimed):
            return
        configs = {row.path for row in self.record.configs}
        for engine in ENGINES.values():
            configs.update(usual_configs(self._host, engine))
        for path in configs:
            with suppress(InstallerError):  # an unreadable config matches no copy
                file = self._host.read(path)
                if file:
                    self._host.remove(unclaimed / file.digest)
        if not self._host.remove_directory(unclaimed):
            names = ", ".join(self._host.names(unclaimed))
            problem = f"match the saved configs in {unclaimed} to engines (their ledger is lost: {names})"
            remedy = "compare them with the engines' configs, move them away, then run uninstall again"
            raise InstallerError(problem, remedy=remedy, code="backup-lost")


def publish(host: Host, path: PurePosixPath, text: str) -> None:
    """Write ``text`` to ``path`` by a rename.

    Raises:
        InstallerError: the directory is missing, the path is another program's, or writing fails.
    """
    flags = {METRICS: Option("metrics-textfile"), ANSWER: Option("metrics-listen")}
    flag = flags.get(path.suffix, Option("nfd-features"))
    # We do not make the directory: node_exporter and NFD lose sight of a directory that is made anew.
    if host.kind(path.parent) is not Kind.DIRECTORY:
        problem = f"write {path} (there is no directory {path.parent})"
        remedy = Remedy("make it, or name the one that is read with ", flag)
        raise InstallerError(problem, remedy=remedy, code="file-operation-failed")
    if is_foreign(host, path):
        remedy = Remedy("move it away, or choose another path with ", flag)
        raise InstallerError(f"write {path} (it is another program's file)", remedy=remedy, code="name-taken")
    file = File(text.encode(errors="replace"))
    present = host.read(path)
    if present is None or present.content != file.content:
        host.replace(path, file)


def remove_published(host: Host, path: PurePosixPath) -> None:
    """Remove our file or our socket; anything else stays.

    Raises:
        InstallerError: the file cannot be removed.
    """
    if is_foreign(host, path):  # nor is a link of another user's followed
        return
    host.sweep(path)
    if path.suffix != SOCKET or is_abandoned(host.local_path(path, last=False)):
        host.remove(path)


def is_foreign(host: Host, path: PurePosixPath) -> bool:
    """Tell whether the file or socket at ``path`` is foreign."""
    if not host.exists(path):
        return False
    if path.suffix == SOCKET:
        return not is_like_ours(host.local_path(path, last=False))
    entry = entry_of(host, path)
    if host.kind(path, last=False) is not Kind.FILE or entry is None or not entry.owned:
        return True  # another user's file is not read, for it may have any size
    file = host.read(path)
    return file is None or file.meta.uid not in trusted_uids() or not file.content.startswith(MARKS)


@contextmanager
def hold(opening: Callable[[], Ledger]) -> Iterator[Ledger]:
    """Hold the ledger opened by ``opening``, and release the ledger at the end.

    Raises:
        InternalError: an exception that is no InstallerError was raised; the exception is the cause.
    """
    with internal_errors():
        ledger = opening()
        try:
            with internal_errors():
                ledger.sweep()
                yield ledger
        finally:
            _release(ledger)


def _release(ledger: Ledger) -> None:
    """Unlock the ledger, and remove an empty one.

    Raises:
        UndoIncompleteError: the empty ledger cannot be removed.
    """
    failure = sys.exception()
    try:
        with internal_errors():
            # Published files tell of a failure, so their row stays. A removed ledger is not removed again:
            # its path may belong to the next instance.
            tells_failure = ledger.record.published and not isinstance(failure, StoppedError)
            # A verb that failed before it wrote anything leaves the rest of a lost ledger as it was.
            is_as_before = failure is not None and ledger.is_as_found
            keeps_empty = tells_failure or ledger.gone or ledger.stays or is_as_before
            if ledger.record.empty and ledger.record.turn is None and not keeps_empty:
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
    """Remove ``top`` with everything below, and the emptied directories of ``made`` above.

    ``made`` is sorted from the deepest directory upwards.
    """
    above = list(made)
    # One rename removes them all, up to a directory that was moved and replaced by a link: the directory is
    # removed first, then the link.
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
    """Return a saved file; None for no file, or a missing or damaged copy."""
    if saved is None:
        return None
    with suppress(InstallerError):  # the copy's path is no regular file
        file = host.read(layout.backups / saved.digest)
        if file is not None and file.digest == saved.digest:
            return File(file.content, saved.meta)
    return None


def _make_home(host: Host, layout: Layout) -> None:
    """Make the ledger's directory, missing directories above, and a first ledger, in a single rename."""
    above = (layout.home, *layout.home.parents)
    # Up to the first that exists: above a --mount the host's root may have no directory.
    missing = list(takewhile(lambda path: not host.exists(path), above))
    if not missing:
        return
    first = missing[-1]
    record = Record(directories=tuple(reversed(missing[1:])))
    content = dumps(record, describe_version()).decode()
    ledger = Text(layout.ledger.relative_to(first), content, PRIVATE.mode)
    lock = Text(layout.home.relative_to(first) / LOCK, "", PRIVATE.mode)
    create_tree(host, first, [ledger, lock])


def dumps(record: Record, version: str = "") -> bytes:
    """Return the rows as readable JSON, with the ``version`` of the program that writes the rows, if told."""
    rows = {"form": FORM, "written_by": version, **to_builtins(record, enc_hook=str)}
    rows["nodes"] = dict(rows["nodes"])
    rows = {name: value for name, value in rows.items() if value or name in ALWAYS}
    # A path that is not UTF-8 holds lone surrogates; their escapes are valid JSON.
    return json.dumps(rows, indent=1, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def loads(content: bytes) -> Record:
    """Return the rows of a ledger written by ``dumps``.

    Raises:
        ValueError: the content is damaged, or of another form.
    """
    try:
        rows = json.loads(content.decode(), parse_int=_whole)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        problem = f"it is damaged or cut off: {place}" if content.strip() else "it is empty"
        raise ValueError(problem) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if isinstance(rows, dict):
        _refuse_other_form(rows.pop("form", None), rows.pop("written_by", None))
        nodes = rows.get("nodes")
        if isinstance(nodes, dict):
            rows["nodes"] = [*nodes.items()]
    record = convert(rows, Record, dec_hook=_path)
    owners = {row.engine for row in record.configs}
    unknown = [*({*record.served} - {*ENGINES}), *(owners - {*ENGINES, Owner.CDI})]
    if unknown:
        raise ValueError(f"the engine {unknown[0][:40]} is unknown here")
    return record


def _refuse_other_form(form: object, version: object) -> None:
    """Refuse a ledger of another form than ours.

    Raises:
        ValueError: the form is missing or unknown.
    """
    if form is None:
        raise ValueError("it has no form number: a version before 0.3.0 wrote it")
    if form != FORM or isinstance(form, bool):
        writer = "another version"
        if isinstance(version, str):
            writer = f"version {version:.40}"
        raise ValueError(f"its form is {form!r:.20}, and only {FORM} is known here: {writer} wrote it")


def _whole(digits: str) -> int:
    """Return a number of the JSON text; Python refuses to read more than 4300 digits."""
    try:
        return int(digits)
    except ValueError as error:
        raise ValueError("it holds a number of more than 4300 digits") from error


def _path(kind: type, value: Any) -> PurePosixPath:
    """Return a path of a row; the path has to be absolute and without ``..``."""
    path = kind(value) if isinstance(value, str) else None
    if path is None or not path.is_absolute() or ".." in path.parts or "\0" in value:
        raise ValueError(f"the path {value!r:.100} is not absolute")
    return PurePosixPath(path)
