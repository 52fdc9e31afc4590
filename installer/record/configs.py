"""The configs that an engine reads: its root file, its drop-ins, what they import."""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
from installer.decide.data import replace
from installer.decide.engines.containerd_config import own_import, patterns
from installer.decide.engines.row import DropIns, Engine
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.former import revived
from installer.decide.inode import File, Kind
from installer.decide.rows import Record
from installer.host.devices import is_read_only
from installer.host.files import Host
from installer.host.limits import free_memory_bytes, memory_limit_bytes

# As measured with plan and install: what the program itself takes, and what the largest config adds, by its
# bytes and by what it is made of. Dense ones take more than a hundred times their size.
BASE_BYTES: Final = 30 << 20
PER_BYTE: Final = 24
PER_PART: Final = {
    b",": 210,
    b"=": 900,
    b'":': 900,
    b'" :': 900,
    b"{": 200,
    b"[]": 150,
    b"\n[": 1500,
    b"\n[[": -600,
}
# Each part of a dotted name is a table of its own; those of headers are mostly the same.
PER_DOT: Final = 1350
NAMES: Final = re.compile(rb"[\w.-]++[ \t]*+(=)?")
HEADERS: Final = re.compile(rb"^[ \t]*+\[[^\n]*+", re.MULTILINE)
PER_DIGIT: Final = 150
LONG_NUMBER: Final = 50_000
NUMBER: Final = re.compile(rb"[0-9A-Fa-f_.]+")
ALL: Final = "*.toml"
DROP_IN: Final = "99-nvidia.toml"
WILDCARDS: Final = frozenset("*?[")
DEVICES: Final = PurePosixPath("/dev")


def with_configs(host: Host, engine: Engine, facts: EngineFacts) -> EngineFacts:
    """Return the facts with the configs an engine reads; none where nobody can edit them.

    Raises:
        InstallerError: the root file is not valid, so that nobody knows what it imports.
    """
    if engine.finds:
        return replace(facts, files=())
    named: set[PurePosixPath] = set()
    if engine.drop_in_dir is not None:
        directory = facts.drop_in.parent if facts.drop_in else engine.drop_in_dir
        if engine.drop_in_names:
            named |= set(_matching(host, directory / engine.drop_in_names))
        elif host.kind(directory) is not Kind.ABSENT:
            named |= set(_walk(host, directory))
    if engine.imports:
        named |= set(_imports(host, facts.config))
    rendered = engine.rendered(facts.config)
    named -= {rendered}
    beside = {path for path in named if host.kind(path) is Kind.FILE}
    if facts.drop_in is not None:
        beside.add(facts.drop_in)
    own = facts.drop_in if engine.drop_ins is DropIns.IMPORTED else None
    taken = set(_matching(host, own_import(own))) if own else set()
    return replace(
        facts,
        files=(facts.config, *sorted(beside - {facts.config})),
        dormant=frozenset(taken - named - {own}),
        unreadable=frozenset(path for path in named if _stays(host, path)),
        rendered=read_config(host, rendered) if rendered else None,
    )


def with_drop_in(host: Host, engine: Engine, facts: EngineFacts) -> EngineFacts:
    """Return an engine with a drop-in where its root file is read-only and imports a directory that is not.

    As on Flatcar, where the root file is part of the image.

    Raises:
        InstallerError: the root file is not valid.
    """
    asked = facts.drop_in is not None or engine.drop_ins is not DropIns.IMPORTED
    if asked or host.kind(facts.config) is not Kind.FILE or not is_read_only(host, facts.config):
        return facts
    for pattern in patterns(facts.config, tree_of(read_config(host, facts.config), facts.config)):
        if pattern.name == ALL and not is_read_only(host, pattern.parent):
            return replace(facts, drop_in=pattern.with_name(DROP_IN))
    return facts


def _stays(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a name is there without a text as well, and is no file then.

    A device reads as empty, anything else that is no file is fatal (engine-facts.md#containerd-config-kinds,
    engine-facts.md#crio-drop-ins).
    """
    if host.link_target(path) is None and host.kind(path) is Kind.FILE:
        return False
    return host.kind(path) is not Kind.OTHER or not host.resolve(path).is_relative_to(DEVICES)


def _walk(host: Host, path: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names that CRI-O reads below a directory: all but those of directories, as filepath.Walk.

    That follows no symbolic link: one to a directory is read as a file, be it the name of the top.
    """
    if host.kind(path, last=False) is not Kind.DIRECTORY:
        yield path
        return
    for name in host.names(path):
        yield from _walk(host, path / name)


def _imports(host: Host, config: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names that a containerd config imports, and those that these import in turn."""
    seen, waiting = {config}, [config]
    while waiting:
        path = waiting.pop()
        try:
            tree = tree_of(read_config(host, path), path)
        except InstallerError:
            if path == config:
                raise
            continue  # somebody else's: containerd itself says what is wrong with it
        for pattern in patterns(path, tree):
            fresh = [other for other in _matching(host, pattern) if other not in seen]
            seen.update(fresh)
            waiting += fresh
            yield from fresh


def _matching(host: Host, pattern: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names that a pattern takes, as Go's filepath.Glob: wildcards in those of directories too.

    Whatever they are: it takes a link that leads nowhere, and containerd does not start with that.
    """
    found = [PurePosixPath("/")]
    for part in pattern.parts[1:]:
        if set(part) & WILDCARDS:
            within = [(directory, name) for directory in found for name in sorted(host.names(directory))]
            found = [directory / name for directory, name in within if fnmatchcase(name, part)]
        else:
            found = [directory / part for directory in found]
    yield from (path for path in found if host.exists(path))


def with_readable_configs(host: Host, engine: Engine, facts: EngineFacts) -> EngineFacts:
    """Return the facts with the configs an engine reads; of a root file that is not valid that file alone."""
    try:
        return with_configs(host, engine, facts)
    except InstallerError:
        return replace(facts, files=(facts.config,))


def usual_configs(host: Host, engine: Engine) -> tuple[PurePosixPath, ...]:
    """Return the configs of an engine at its usual place, whether it runs or not."""
    usual = EngineFacts(engine.name, engine.config, None, None, (), engine.socket, engine.unit)
    return (*with_readable_configs(host, engine, usual).files, *copies_of(host, engine))


def copies_of(host: Host, engine: Engine) -> tuple[PurePosixPath, ...]:
    """Return the files that are there, none of its configs, and may take the place of its root file."""
    pattern = engine.generated.copies if engine.generated else None
    if pattern is None:
        return ()
    found = {host.resolve(path): path for path in _matching(host, pattern) if host.kind(path) is Kind.FILE}
    found.pop(host.resolve(engine.config), None)
    return tuple(path for path in found.values() if engine.is_copy(path))


def contents_of(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, File | None]:
    """Return each config, as ``read_config`` does."""
    return {path: read_config(host, path) for path in sorted(paths)}


def with_put_back(host: Host, held: Record) -> Record:
    """Return the rows with those of before an undo for each config that somebody has put back since."""
    return revived(held, contents_of(host, (row.path for row in held.former_configs)))


def read_config(host: Host, path: PurePosixPath) -> File | None:
    """Return a config that is there.

    Raises:
        InstallerError: it cannot be read, or could not be worked on within the memory that we may use.
    """
    file, limit, free = host.read(path), _limit(), free_memory_bytes()
    grows = _grows(file.content) if file else 0
    if file is None or (grows <= free and (limit is None or BASE_BYTES + grows <= limit)):
        return file
    what, need = f"edit {path} ({len(file.content) / 1e6:.1f} MB of config take about", BASE_BYTES + grows
    if limit is not None and need > limit:
        raise InstallerError(
            f"{what} {need >> 20} MiB of memory, the limit of this process is {limit >> 20} MiB)",
            remedy="raise the memory limit of the pod or unit, or make the file smaller",
            code="no-memory",
        )
    raise InstallerError(
        f"{what} {grows >> 20} MiB more of memory, {max(free, 0) >> 20} MiB are free)",
        remedy="free some memory of the node, raise ulimit -v where it is set, or make the file smaller",
        code="no-memory",
    )


def _grows(content: bytes) -> int:
    """Return by how many bytes this process would grow with work on a config."""
    grows = PER_BYTE * len(content) + sum(size * content.count(part) for part, size in PER_PART.items())
    if len(content) < LONG_NUMBER:
        return grows
    # What ends with a dot has a quoted part behind it; the dots of a string are none of a name.
    pairs = HEADERS.sub(b"", content)
    names = (found for found in NAMES.finditer(pairs) if found[1] or found[0].endswith(b"."))
    grows += PER_DOT * sum(found[0].count(b".") for found in names)
    # A number that is longer than any has meaning is taken apart digit by digit before it is refused.
    longest = max((len(found[0]) for found in NUMBER.finditer(content)), default=0)
    return grows + (PER_DIGIT * longest if longest > LONG_NUMBER else 0)


@lru_cache(maxsize=1)
def _limit() -> int | None:
    return memory_limit_bytes()
