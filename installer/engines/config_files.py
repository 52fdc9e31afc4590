"""The configs of an engine: its root file, its drop-ins, what they import; which are written, and how."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from errno import ENOTDIR, EROFS
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines.config_edits import texts_alone, tree_of
from installer.engines.next_start import FRESH_S
from installer.engines.startup import WILDCARDS, path_of, value_of
from installer.errors import InstallerError, NotBegunError, Option, Remedy
from installer.host.files import READ_ONLY, Host, is_read_only
from installer.host.inodes import REMEDIES, is_mount_point
from installer.host.programs import can_be_started
from installer.host.systemd import UnitStart
from installer.model.engine import Engine, EngineState
from installer.model.facts import ConfigRow
from installer.model.files import PATH, File, Kind
from installer.model.options import Places
from installer.model.steps import WriteConfig

TICK_S: Final = 0.01  # the unit of a process's start


def with_places(host: Host, engine: EngineState, places: Places) -> EngineState:
    """Return an engine with the root file that it reads, and with a drop-in where it looks for one."""
    # NVIDIA's operator names a root file that CRI-O does not read; what is beside it counts all the same.
    beside = engine.drop_in is not None and engine.spec.drop_ins.directory is not None
    unread = beside and places.config and (engine.words or host.kind(places.config) is not Kind.FILE)
    if places.config is None or unread:
        engine = replace(
            engine, config=path_of(engine.words, engine.spec.cmdline.config) or engine.spec.config
        )
    else:
        engine = _with_own_name(host, engine, places.config)
    directory = path_of(engine.words, engine.spec.cmdline.drop_ins)
    if places.drop_in is None and directory and engine.drop_in:
        engine = replace(engine, drop_in=directory / engine.drop_in.name)
    return engine


def _with_own_name(host: Host, engine: EngineState, named: PurePosixPath) -> EngineState:
    """Return an engine with its root file by the name that it reads, where ``named`` leads to the same file.

    By two names one file would count as two: an undo takes our keys out of one, and finds them in the other.
    """
    read = path_of(engine.words, engine.spec.cmdline.config) or engine.spec.config
    if named == read or not _is_same_file(host, named, read) or is_read_only(host, read):
        return engine
    return replace(engine, config=read)


def with_configs(host: Host, engine: EngineState) -> EngineState:
    """Return an engine with the configs that it reads; raise where its root file is not valid."""
    spec = engine.spec
    if spec.built_in_runtime:
        return replace(engine, files=())
    named: set[PurePosixPath] = set()
    directory = _find_drop_in_directory(engine)
    if directory is not None:
        if spec.drop_ins.pattern:
            named |= set(_matching(host, directory / spec.drop_ins.pattern))
        elif host.kind(directory) is not Kind.ABSENT:
            named |= set(walk(host, directory))
    if spec.drop_ins.imports:
        named |= set(_imports(host, spec, engine.config))
    rendered = spec.find_generated_config(engine.config)
    named -= {rendered}
    beside = {path for path in named if host.kind(path) is Kind.FILE}
    if engine.drop_in is not None:
        beside.add(engine.drop_in)
    own: PurePosixPath | None = None
    taken: set[PurePosixPath] = set()
    if spec.drop_ins.is_imported and engine.drop_in is not None:
        own = engine.drop_in
        pattern = spec.find_own_import(own)
        if pattern is not None:
            taken.update(_matching(host, pattern))
    changed = tuple(_find_changed(host, engine, beside))
    return replace(
        engine,
        files=(engine.config, *sorted(beside - {engine.config})),
        changed=changed,
        fresh=tuple(_find_fresh(host, (*changed, *engine.edited_inputs))),
        dormant=frozenset(taken - named - {own}),
        unreadable=frozenset(path for path in named if _is_unreadable(host, path)),
        gone=frozenset(_find_gone(host, engine, beside)),
        drop_in_directory=directory,
        rendered=host.read(rendered) if rendered else None,
    )


def _find_drop_in_directory(engine: EngineState) -> PurePosixPath | None:
    """Return the directory of drop-ins that an engine reads; None where it reads none."""
    drop_ins, ours = engine.spec.drop_ins, engine.drop_in
    if drop_ins.directory is None:
        return None
    if ours is None:
        return drop_ins.directory
    read = path_of(engine.words, engine.spec.cmdline.drop_ins) or drop_ins.directory
    reads_below = not drop_ins.pattern
    # Ours may be in a subdirectory. One that the engine does not read is refused elsewhere.
    return read if reads_below and ours.is_relative_to(read) else ours.parent


def _find_changed(host: Host, engine: EngineState, beside: set[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Yield the configs that were changed after an engine's start, or after its socket was made."""
    seen = engine.seen_start
    if seen is not None:
        recorded = {PurePosixPath(path) for path in seen.texts}
        for path in sorted({engine.config, *beside, *recorded}):
            if digest_at(host, path) != seen.texts.get(str(path), ""):
                yield path
        return
    since_s = engine.began_s
    if since_s is None and engine.serving is not None:
        since_s = host.changed_s(engine.socket)
    if since_s is None:
        return
    for path in sorted({engine.config, *beside}):
        if host.kind(path) is Kind.FILE and host.changed_s(path) > since_s + TICK_S:
            yield path


def digest_at(host: Host, path: PurePosixPath) -> str:
    """Return the digest of a file; "" if there is none, or if it cannot be read."""
    with suppress(InstallerError):  # reported where the file is read
        file = host.read(path)
        return file.digest if file is not None else ""
    return ""


def _find_fresh(host: Host, paths: Iterable[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Yield the files that were changed less than ``FRESH_S`` ago."""
    now_s = time.time()
    for path in paths:
        if 0 <= now_s - host.changed_s(path) < FRESH_S:
            yield path


def with_readable_configs(host: Host, engine: EngineState) -> EngineState:
    """Return an engine with the configs that it reads; of a root file that is not valid that file alone."""
    try:
        return with_configs(host, engine)
    except InstallerError:
        return replace(engine, files=(engine.config,))


def with_drop_in(host: Host, engine: EngineState) -> EngineState:
    """Return an engine with a drop-in where only a directory that its root file imports can be written."""
    drop_ins = engine.spec.drop_ins
    asked = engine.drop_in is not None or not drop_ins.is_imported
    if asked or host.kind(engine.config) is not Kind.FILE or not is_read_only(host, engine.config):
        return engine
    tree = tree_of(host.read(engine.config), engine.config)
    for pattern in engine.spec.list_imports(engine.config, tree):
        if pattern.name == "*.toml" and not is_read_only(host, pattern.parent):
            return replace(engine, drop_in=pattern.with_name("99-nvidia.toml"))  # as on Flatcar
    return engine


def _find_gone(host: Host, engine: EngineState, paths: Iterable[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Yield the programs that an engine starts, as it runs and as its configs say, and that are none."""
    starts = [each for each in (engine.next_start, engine.started) if each and each.runs(engine.spec.process)]
    if not engine.spec.looks_up_programs or not (starts or engine.serving):
        return
    named: list[tuple[object, bool]] = [(one.monitor, True) for one in engine.served.handlers.values()]
    for path in (engine.config, *paths):
        with suppress(InstallerError):  # reported where the file is read
            named += engine.spec.list_programs(tree_of(host.read(path), path))
    # A unit without a PATH has that of systemd, as its process has now.
    places = next((each.paths for each in starts if "PATH" in each.environment), PATH)
    for word, runs in {(each, runs) for each, runs in named if isinstance(each, str) and each}:
        program = PurePosixPath(word)
        if program.is_absolute():
            there = can_be_started(host, program) if runs else host.status(program) is not None
        else:  # a flag such as --conmon says otherwise
            there = not starts or any(each.mentions(program.name) for each in starts)
            there = there or any(can_be_started(host, place / program) for place in places)
        if not there:
            yield program


def _is_unreadable(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a name is there without a text as well, and is no file then."""
    if host.link_target(path) is None and host.kind(path) is Kind.FILE:
        return False
    # A device reads as empty (engine-facts.md#containerd-config-kinds, engine-facts.md#crio-drop-ins).
    return host.kind(path) is not Kind.OTHER or not host.resolve(path).is_relative_to("/dev")


def walk(host: Host, path: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names that CRI-O reads below a directory: all but those of directories, as filepath.Walk."""
    if host.kind(path, last=False) is not Kind.DIRECTORY:  # a link to one is read as a file, also at the top
        yield path
        return
    for name in host.names(path):
        yield from walk(host, path / name)


def _imports(host: Host, spec: Engine, config: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names that a config imports, and those that these import in turn."""
    seen, waiting = {config}, [config]
    while waiting:
        path = waiting.pop()
        try:
            tree = tree_of(host.read(path), path)
        except InstallerError:
            if path == config:
                raise
            continue  # another program's file: the engine itself says what is wrong with it
        for pattern in spec.list_imports(path, tree):
            fresh = [other for other in _matching(host, pattern) if other not in seen]
            seen.update(fresh)
            waiting += fresh
            yield from fresh


def _matching(host: Host, pattern: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names that a pattern takes, as Go's filepath.Glob: wildcards in those of directories too."""
    found = [PurePosixPath("/")]
    for part in pattern.parts[1:]:
        if set(part) & WILDCARDS:
            within = [(directory, name) for directory in found for name in sorted(host.names(directory))]
            found = [directory / name for directory, name in within if fnmatchcase(name, part)]
        else:
            found = [directory / part for directory in found]
    yield from (path for path in found if host.exists(path))  # also a link that leads nowhere, which is fatal


def usual_configs(host: Host, spec: Engine) -> tuple[PurePosixPath, ...]:
    """Return the configs of an engine at its usual place, whether it runs or not."""
    usual = replace(EngineState.usual(spec), drop_in=None)
    return (*with_readable_configs(host, usual).files, *copies_of(host, spec))


def copies_of(host: Host, spec: Engine) -> tuple[PurePosixPath, ...]:
    """Return the files that are there, none of its configs, and may take the place of its root file."""
    if spec.copies is None:
        return ()
    paths = (path for path in _matching(host, spec.copies) if host.kind(path) is Kind.FILE)
    found = {host.resolve(path): path for path in paths}
    found.pop(host.resolve(spec.config), None)
    return tuple(path for path in found.values() if spec.is_copy(path))


def explain_unread_root(host: Host, engine: EngineState, places: Places) -> Iterator[InstallerError]:
    """Yield why an engine would not read the root file that ``--config`` names, as far as its start tells."""
    named, spec, start = places.config, engine.spec, engine.started or engine.next_start
    if named is None or spec.built_in_runtime or engine.hook is not None:
        return
    if start is None or not start.runs(spec.process):
        return
    given = value_of(start.words, spec.cmdline.config)
    if given and not given.startswith("/"):
        return  # what a relative path leads to is not known
    read = PurePosixPath(given) if given else spec.config
    if _is_same_file(host, named, read) or host.kind(read.parent) is Kind.ABSENT:
        return  # a path of the host that is not mounted here cannot be compared
    beside = engine.drop_in is not None and spec.drop_ins.directory is not None
    if beside and host.kind(named.parent) is Kind.DIRECTORY:
        return  # NVIDIA's operator names such a file of CRI-O, and ours goes to a drop-in
    yield InstallerError(
        f"configure {engine.title} in {named} (it reads {read})",
        remedy=Remedy("give ", Option("config", str(read), engine.name), ", or leave it out"),
        code="engine-flags",
    )


def _is_same_file(host: Host, path: PurePosixPath, other: PurePosixPath) -> bool:
    """Tell whether two paths lead to one file, also by a mount, or will once that is there."""
    if host.resolve(path) == host.resolve(other):
        return True
    first, second = host.status(path), host.status(other)
    if first is None and second is None and path.name == other.name:
        first, second = host.status(path.parent), host.status(other.parent)
    if first is None or second is None:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def explain_unread(host: Host, engine: EngineState) -> Iterator[InstallerError]:
    """Yield why an engine would not read what is written for it."""
    spec = engine.spec
    if engine.hook is not None:
        places = engine.served.hook_dirs
        if places and not _is_among(host, engine.hook.parent, places):
            yield _explain_unread_hook(host, engine, engine.hook)
        return
    directory = path_of(engine.words, spec.cmdline.drop_ins) or spec.drop_ins.directory
    if engine.drop_in is None or spec.drop_ins.directory is None or directory is None:
        return
    place, real, pattern = host.resolve(engine.drop_in.parent), host.resolve(directory), spec.drop_ins.pattern
    if pattern:
        read, is_read = str(directory / pattern), fnmatchcase(engine.drop_in.name, pattern) and place == real
    else:
        read, is_read = f"the files below {directory}", place.is_relative_to(real)
    if not is_read:
        problem = f"configure {engine.title} in {engine.drop_in} (it reads {read})"
        remedy = f"name a file there with --drop-in-config, such as {directory / engine.drop_in.name}"
        yield InstallerError(problem, remedy=remedy, code="engine-flags")


def _explain_unread_hook(host: Host, engine: EngineState, hook: PurePosixPath) -> InstallerError:
    """Return why an engine does not read our hook, and what its owner does about that."""
    places = ", ".join(map(str, engine.served.hook_dirs))
    later: tuple[PurePosixPath, ...] = ()
    with suppress(InstallerError):  # an invalid config is reported where it is read
        later = _list_hook_dirs(host, engine)
    if _is_among(host, hook.parent, later):
        return InstallerError(
            f"give {engine.title} the hook {hook} (since its start it looks for hooks in {places}, and its "
            f"configs name {hook.parent} now)",
            remedy=f"restart {engine.unit or engine.title} at a time of your choice",
            code="restart-pending",
        )
    return InstallerError(
        f"give {engine.title} the hook {hook} (it looks for hooks in {places})",
        remedy=f"add {hook.parent} to hooks_dir in its config, or configure runtimes instead",
        code="engine-flags",
    )


def _list_hook_dirs(host: Host, engine: EngineState) -> tuple[PurePosixPath, ...]:
    """Return where an engine will look for hooks by its configs; nothing where they are as at its start."""
    now = with_configs(host, engine)
    directories = (now.drop_in_directory,) if now.drop_in_directory else ()
    if not is_outdated(host, now, (*now.files, *directories)):
        return ()
    return texts_alone(now, contents_of(host, now.files)).hook_dirs


def _is_among(host: Host, place: PurePosixPath, places: Iterable[PurePosixPath]) -> bool:
    return host.resolve(place) in {host.resolve(path) for path in places}


def is_outdated(host: Host, engine: EngineState, paths: Iterable[PurePosixPath]) -> bool:
    """Tell whether a config, or the directory of one that went, was changed after an engine's start."""
    since_s = engine.began_s
    if since_s is None or not engine.spec.reload_misreports:
        return False
    seen = [path if host.kind(path) is not Kind.ABSENT else path.parent for path in paths]
    return any(host.changed_s(path) > since_s + TICK_S for path in seen)


def is_replaced(host: Host, engine: EngineState) -> bool:
    """Tell whether an engine's program was replaced after its start, as far as times tell."""
    return engine.program is not None and _are_younger(host, engine, [engine.program])


def is_unit_edited(host: Host, engine: EngineState, unit: UnitStart) -> bool:
    """Tell whether the files of a unit were changed after an engine's start whose environment is a guess."""
    if engine.started is None or not engine.started.guessed:
        return False
    return _are_younger(host, engine, map(PurePosixPath, (*unit.files, *unit.environment_files)))


def _are_younger(host: Host, engine: EngineState, paths: Iterable[PurePosixPath]) -> bool:
    """Tell whether any of some files was changed after an engine's start, as far as times tell."""
    since_s = engine.began_s
    if since_s is None:
        return False
    with suppress(InstallerError):  # of a link that others than root could have placed nothing is known
        return any(host.changed_s(path) > since_s + TICK_S for path in paths)
    return False


def contents_of(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, File | None]:
    """Return each config, None where there is none; raise where one cannot be read."""
    return {path: host.read(path) for path in sorted(paths)}


def list_targets(engine: EngineState) -> Iterator[PurePosixPath]:
    """Yield the files that an install may write for an engine."""
    if engine.spec.built_in_runtime:
        return
    if engine.hook is not None:
        yield engine.hook
        return
    if engine.drop_in is not None:
        yield engine.drop_in
    if engine.drop_in is None or engine.spec.drop_ins.directory is None:
        yield engine.config


def explain_unwritable(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, InstallerError]:
    """Return why files could be neither written nor removed where they are to be."""
    found = {}
    for path in paths:
        real = host.resolve(path)
        if host.kind(real) is Kind.FILE and is_mount_point(host.local_path(real)):
            problem = f"replace {path} (it is mounted as a single file)"
            remedy = f"mount its directory {real.parent} instead"
            found[path] = InstallerError(problem, remedy=remedy, code="file-not-replaceable")
            continue
        above = real.parents
        standing = next(each for each in above if host.kind(each) is not Kind.ABSENT)
        if host.kind(standing) is not Kind.DIRECTORY:
            problem, remedy = f"write {path} ({standing} is not a directory)", REMEDIES[ENOTDIR]
        elif READ_ONLY in host.mounted(standing):
            problem, remedy = f"write {path} (read-only file system)", REMEDIES[EROFS]
        else:
            continue
        found[path] = InstallerError(problem, remedy=remedy, code="file-operation-failed")
    return found


def list_missing_directories(host: Host, paths: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """Return the directories that would have to be made for files."""
    found = set[PurePosixPath]()
    for path in paths:
        above = [parent for parent in path.parents if host.kind(parent) is Kind.ABSENT]
        if any(host.link_target(parent) is not None for parent in above):  # what leads nowhere stays
            above = [parent for parent in host.resolve(path).parents if host.kind(parent) is Kind.ABSENT]
        found.update(above)
    return found


def write_config(host: Host, write: WriteConfig) -> None:
    """Write or remove a config; raise NotBegunError where it was changed since it was read."""
    now = host.read(write.path)
    digest = now and now.digest
    if digest == (write.after and write.after.digest) and (now is None) == (write.after is None):
        return
    if digest != (write.before and write.before.digest):
        problem = f"edit {write.path} (another process wrote it at the same moment)"
        raise NotBegunError(problem, remedy="run again", code="config-changed")
    if write.after is None:
        real = host.resolve(write.path)  # a link that led nowhere before us stays
        if write.link:
            host.remove(write.path)  # first: an engine that starts now would not read a link to nowhere
        host.remove(real)
        return
    if write.link and now is None:
        host.link(write.path, write.link)
    host.replace(write.path, write.after)


def find_new_links(host: Host, rows: Iterable[ConfigRow]) -> dict[PurePosixPath, str]:
    """Return what the links hold in the place of files that we created; a link to nowhere is unknown."""
    found = {}
    for row in rows:
        created = host.resolve(row.path.parent) / row.path.name
        link = host.link_target(row.path) if row.original is None and row.target in {None, created} else None
        if link is not None and host.kind(row.path) is Kind.FILE:
            found[row.path] = link
    return found
