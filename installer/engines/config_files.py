"""The configs of an engine: its root file, its drop-ins and their imports, and how a config is written."""

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from errno import ENOTDIR, EROFS
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines.config_texts import predict_from_texts, tree_of
from installer.engines.reload_notes import FRESH_S
from installer.engines.startup import WILDCARDS, path_of, value_of
from installer.errors import InstallerError, NotBegunError, Option, Remedy
from installer.host.files import READ_ONLY, Host, is_immutable, is_read_only
from installer.host.inodes import REMEDIES, is_mount_point, is_same
from installer.host.programs import can_be_started
from installer.host.systemd import UnitStart
from installer.model.engine import Engine, EngineState, Started
from installer.model.facts import ConfigRow
from installer.model.files import PATH, File, Kind
from installer.model.options import Places
from installer.model.steps import WriteConfig

TICK_S: Final = 0.01  # the unit of the start time of a process


def with_places(host: Host, engine: EngineState, places: Places) -> EngineState:
    """Fill in the root file and the directory of drop-ins read by an engine."""
    if places.config is None or _may_be_unread(host, engine, places.config):
        engine = replace(engine, config=_find_root_file(engine))
    else:
        engine = _with_own_name(host, engine, places.config)
    directory = path_of(engine.words, engine.kind.cmdline.drop_ins)
    if places.drop_in is None and directory and engine.drop_in:
        engine = replace(engine, drop_in=directory / engine.drop_in.name)
    return engine


def _find_root_file(engine: EngineState) -> PurePosixPath:
    """Return the root file by an engine's command line, else the usual root file."""
    return path_of(engine.words, engine.kind.cmdline.config) or engine.kind.config


def _may_be_unread(host: Host, engine: EngineState, config: PurePosixPath) -> bool:
    """Tell whether an engine may ignore the root file of an option, though the engine reads our drop-in.

    NVIDIA's operator names a root file that CRI-O does not read.
    """
    if engine.drop_in is None or engine.kind.drop_ins.directory is None:
        return False
    return bool(engine.words) or host.kind(config) is not Kind.FILE


def _with_own_name(host: Host, engine: EngineState, named: PurePosixPath) -> EngineState:
    """Replace ``named`` by the engine's own name of its root file, if both names lead to the same file.

    Under two names a single file would count twice: an undo would remove our keys under the first name, and
    find them under the second.
    """
    read = _find_root_file(engine)
    if named == read or not _is_same_file(host, named, read) or is_read_only(host, read):
        return engine
    return replace(engine, config=read)


def with_configs(host: Host, engine: EngineState) -> EngineState:
    """Fill in the configs read by an engine.

    Raises:
        InstallerError: the root file is not valid.
    """
    kind = engine.kind
    if kind.built_in_runtime:
        return replace(engine, files=())

    directory = _find_drop_in_directory(engine)
    rendered = kind.find_generated_config(engine.config)
    names = _list_names(host, engine, directory) - {rendered}
    files = set()
    for path in names:
        if host.kind(path) is Kind.FILE:
            files.add(path)
    if engine.drop_in is not None:
        files.add(engine.drop_in)
    dormant = _find_dormant(host, engine, names)
    changed = tuple(_find_changed(host, engine, files))
    return replace(
        engine,
        files=(engine.config, *sorted(files - {engine.config})),
        changed=changed,
        fresh=tuple(_find_fresh(host, (*changed, *engine.edited_inputs))),
        dormant=dormant,
        unreadable=frozenset(path for path in names if _is_unreadable(host, path)),
        missing_programs=frozenset(_find_missing_programs(host, engine, files)),
        drop_in_directory=directory,
        rendered=host.read(rendered) if rendered else None,
    )


def _list_names(host: Host, engine: EngineState, directory: PurePosixPath | None) -> set[PurePosixPath]:
    """List the names read by an engine besides its root file: drop-ins in ``directory``, and imports."""
    drop_ins = engine.kind.drop_ins
    names: set[PurePosixPath] = set()
    if directory is not None:
        if drop_ins.pattern:
            names.update(_match(host, directory / drop_ins.pattern))
        elif host.kind(directory) is not Kind.ABSENT:
            names.update(walk(host, directory))
    if drop_ins.imports:
        names.update(_find_imports(host, engine.kind, engine.config))
    return names


def _find_drop_in_directory(engine: EngineState) -> PurePosixPath | None:
    """Return the directory of drop-ins read by an engine; None for none."""
    drop_ins = engine.kind.drop_ins
    if drop_ins.directory is None:
        return None
    if engine.drop_in is None:
        return drop_ins.directory
    directory = path_of(engine.words, engine.kind.cmdline.drop_ins) or drop_ins.directory
    reads_subdirectories = not drop_ins.pattern
    # A drop-in of ours that the engine does not read is refused elsewhere.
    if reads_subdirectories and engine.drop_in.is_relative_to(directory):
        return directory
    return engine.drop_in.parent


def _find_changed(host: Host, engine: EngineState, files: set[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Yield the configs changed after an engine's start, or after the creation of its socket."""
    seen = engine.seen_start
    if seen is not None:
        recorded = {PurePosixPath(path) for path in seen.texts}
        for path in sorted({engine.config, *files, *recorded}):
            if digest_at(host, path) != seen.texts.get(str(path), ""):
                yield path
        return

    began_s = engine.began_s
    if began_s is None and engine.serving is not None:
        began_s = host.changed_s(engine.socket)
    if began_s is None:
        return
    for path in sorted({engine.config, *files}):
        if host.kind(path) is Kind.FILE and host.changed_s(path) > began_s + TICK_S:
            yield path


def digest_at(host: Host, path: PurePosixPath) -> str:
    """Return the digest of a file; "" for a missing file, or if the file cannot be read."""
    with suppress(InstallerError):  # reported where the file is read
        file = host.read(path)
        return file.digest if file is not None else ""
    return ""


def _find_fresh(host: Host, paths: Iterable[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Yield the files changed less than ``FRESH_S`` ago."""
    now_s = time.time()
    for path in paths:
        if 0 <= now_s - host.changed_s(path) < FRESH_S:
            yield path


def _find_dormant(host: Host, engine: EngineState, names: set[PurePosixPath]) -> frozenset[PurePosixPath]:
    """Find the files that nothing imports now, but that the import of our drop-in would bring into force."""
    drop_in = engine.drop_in
    if drop_in is None or not engine.kind.drop_ins.is_imported:
        return frozenset()
    pattern = engine.kind.find_own_import(drop_in)
    if pattern is None:
        return frozenset()
    return frozenset({*_match(host, pattern)} - names - {drop_in})


def with_readable_configs(host: Host, engine: EngineState) -> EngineState:
    """Fill in the configs read by an engine: the root file alone if the root file is not valid."""
    try:
        return with_configs(host, engine)
    except InstallerError:
        return replace(engine, files=(engine.config,))


def with_drop_in(host: Host, engine: EngineState) -> EngineState:
    """Give an engine a drop-in, if the root file is read-only and imports a writable directory."""
    drop_ins = engine.kind.drop_ins
    if engine.drop_in is not None or not drop_ins.is_imported:
        return engine
    if host.kind(engine.config) is not Kind.FILE or not is_read_only(host, engine.config):
        return engine
    tree = tree_of(host.read(engine.config), engine.config)
    for pattern in engine.kind.list_imports(engine.config, tree):
        if pattern.name == "*.toml" and not is_read_only(host, pattern.parent):
            return replace(engine, drop_in=pattern.with_name("99-nvidia.toml"))  # as on Flatcar
    return engine


def _find_missing_programs(
    host: Host, engine: EngineState, files: Iterable[PurePosixPath]
) -> Iterator[PurePosixPath]:
    """Yield the missing programs named by a running engine's answer and by the engine's configs."""
    kind = engine.kind
    starts = []
    for start in (engine.next_start, engine.started):
        if start is not None and start.runs(kind.process):
            starts.append(start)
    if not kind.looks_up_programs or not (starts or engine.serving):
        return

    handlers = engine.served.handlers.values()
    programs: list[tuple[object, bool]] = [(handler.monitor, True) for handler in handlers]
    for path in (engine.config, *files):
        with suppress(InstallerError):  # reported where the file is read
            programs += kind.list_programs(tree_of(host.read(path), path))
    words: dict[tuple[str, bool], None] = {}
    for word, runs in programs:
        if isinstance(word, str) and word:
            words[word, runs] = None

    for name, runs in words:
        program = PurePosixPath(name)
        if not _is_there(host, program, starts, runs=runs):
            yield program


def _is_there(host: Host, program: PurePosixPath, starts: Collection[Started], *, runs: bool) -> bool:
    """Tell whether an engine finds a program: a path, or a name in the PATH.

    Args:
        host: The node.
        program: The program.
        starts: The next start and the present start of the engine, as far as known.
        runs: The engine runs the program at once; else the file only has to exist.
    """
    if program.is_absolute():
        return can_be_started(host, program) if runs else host.status(program) is not None
    # A flag such as --conmon may name another program.
    if not starts or any(start.mentions(program.name) for start in starts):
        return True
    # A unit without a PATH has systemd's PATH, as its process has now.
    directories = next((start.paths for start in starts if "PATH" in start.environment), PATH)
    return any(can_be_started(host, directory / program) for directory in directories)


def _is_unreadable(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a name leads to no regular file: an engine does not start with a config of this kind."""
    if host.link_target(path) is None and host.kind(path) is Kind.FILE:
        return False
    # A device reads as empty (engine-facts.md#containerd-config-kinds, engine-facts.md#crio-drop-ins).
    return host.kind(path) is not Kind.OTHER or not host.resolve(path).is_relative_to("/dev")


def walk(host: Host, path: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names below a directory, except directories, as CRI-O's filepath.Walk finds them.

    A link to a directory is read as a file, also a link at the top.
    """
    if host.kind(path, last=False) is not Kind.DIRECTORY:
        yield path
        return
    for name in host.names(path):
        yield from walk(host, path / name)


def _find_imports(host: Host, kind: Engine, config: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names imported by a config, and the names imported in turn by the imported files."""
    known = {config}
    waiting = [config]
    while waiting:
        path = waiting.pop()
        try:
            tree = tree_of(host.read(path), path)
        except InstallerError:
            if path == config:
                raise
            continue  # another program's file: the engine itself reports its flaw
        for pattern in kind.list_imports(path, tree):
            fresh = [other for other in _match(host, pattern) if other not in known]
            known.update(fresh)
            waiting += fresh
            yield from fresh


def _match(host: Host, pattern: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the names matching a pattern, as Go's filepath.Glob: also directories may have wildcards."""
    paths = [PurePosixPath("/")]
    for part in pattern.parts[1:]:
        if set(part) & WILDCARDS:
            matches: list[PurePosixPath] = []
            for directory in paths:
                matches += _match_in(host, directory, part)
            paths = matches
        else:
            paths = [directory / part for directory in paths]
    for path in paths:
        if host.exists(path):  # also a link that leads nowhere, which is fatal
            yield path


def _match_in(host: Host, directory: PurePosixPath, part: str) -> Iterator[PurePosixPath]:
    """Yield the paths in a directory with names matching a part of a pattern."""
    for name in sorted(host.names(directory)):
        if fnmatchcase(name, part):
            yield directory / name


def usual_configs(host: Host, kind: Engine) -> tuple[PurePosixPath, ...]:
    """List the configs of an engine at its usual place, whether the engine runs or not."""
    usual = replace(EngineState.usual(kind), drop_in=None)
    return (*with_readable_configs(host, usual).files, *copies_of(host, kind))


def copies_of(host: Host, kind: Engine) -> tuple[PurePosixPath, ...]:
    """List the existing files that may replace an engine's root file, but are not read as configs."""
    if kind.copies is None:
        return ()
    by_target = {}
    for path in _match(host, kind.copies):
        if host.kind(path) is Kind.FILE:
            by_target[host.resolve(path)] = path
    by_target.pop(host.resolve(kind.config), None)
    return tuple(path for path in by_target.values() if kind.is_copy(path))


def explain_unread_root(host: Host, engine: EngineState, places: Places) -> Iterator[InstallerError]:
    """Yield an error if an engine does not read the root file named by ``--config``.

    An engine with an unknown start may read the file if the file exists.
    """
    named = places.config
    kind = engine.kind
    if named is None or kind.built_in_runtime or engine.hook is not None:
        return
    start = engine.started or engine.next_start
    is_known = start is not None and start.runs(kind.process)
    read = kind.config
    if start is not None and is_known:
        given = value_of(start.words, kind.cmdline.config)
        if given and given.startswith("/"):
            read = PurePosixPath(given)
        elif given:
            is_known = False  # the base of a relative path is not known
    if _is_same_file(host, named, read):
        return
    # A path of the host that is not mounted here cannot be compared.
    if is_known and host.kind(read.parent) is not Kind.ABSENT and not _is_beside_drop_in(host, engine, named):
        yield InstallerError(
            f"configure {engine.title} in {named} (it reads {read})",
            remedy=Remedy("give ", Option("config", str(read), engine.name), ", or leave it out"),
            code="engine-flags",
        )
        return
    absence = ""
    if host.kind(named.parent) is Kind.ABSENT:
        absence = f"there is no directory {named.parent}"
    elif host.kind(named) is Kind.ABSENT and named in list_targets(engine):
        absence = "there is no such file"
    if absence:
        reads_it = f"if {engine.title} reads its config there"
        yield InstallerError(
            f"configure {engine.title} in {named} ({absence})",
            remedy=Remedy("correct ", Option("config"), f", or make that file {reads_it}"),
            code="path-unusable",
        )


def _is_beside_drop_in(host: Host, engine: EngineState, named: PurePosixPath) -> bool:
    """Tell whether a named root file may be unread, because our runtimes go to a drop-in.

    NVIDIA's operator names such a file of CRI-O.
    """
    reads_our_drop_in = engine.drop_in is not None and engine.kind.drop_ins.directory is not None
    return reads_our_drop_in and host.kind(named.parent) is Kind.DIRECTORY


def _is_same_file(host: Host, path: PurePosixPath, other: PurePosixPath) -> bool:
    """Tell whether two paths lead to the same file, also by a mount or for a file yet to be made."""
    if host.resolve(path) == host.resolve(other):
        return True
    first = host.status(path)
    second = host.status(other)
    if first is None and second is None and path.name == other.name:
        first = host.status(path.parent)
        second = host.status(other.parent)
    return is_same(first, second)


def explain_unread(host: Host, engine: EngineState) -> Iterator[InstallerError]:
    """Yield an error if an engine does not read our hook or our drop-in."""
    kind = engine.kind
    if engine.hook is not None:
        hook_dirs = engine.served.hook_dirs
        if hook_dirs and not _is_among(host, engine.hook.parent, hook_dirs):
            yield _explain_unread_hook(host, engine, engine.hook)
        return

    directory = path_of(engine.words, kind.cmdline.drop_ins) or kind.drop_ins.directory
    if engine.drop_in is None or kind.drop_ins.directory is None or directory is None:
        return
    drop_in_parent = host.resolve(engine.drop_in.parent)
    real_directory = host.resolve(directory)
    pattern = kind.drop_ins.pattern
    if pattern:
        files = str(directory / pattern)
        is_read = fnmatchcase(engine.drop_in.name, pattern) and drop_in_parent == real_directory
    else:
        files = f"the files below {directory}"
        is_read = drop_in_parent.is_relative_to(real_directory)
    if not is_read:
        problem = f"configure {engine.title} in {engine.drop_in} (it reads {files})"
        remedy = f"name a file there with --drop-in-config, such as {directory / engine.drop_in.name}"
        yield InstallerError(problem, remedy=remedy, code="engine-flags")


def _explain_unread_hook(host: Host, engine: EngineState, hook: PurePosixPath) -> InstallerError:
    """Explain why an engine does not read our hook, with the owner's remedy."""
    present_dirs = ", ".join(map(str, engine.served.hook_dirs))
    later_dirs: tuple[PurePosixPath, ...] = ()
    with suppress(InstallerError):  # an invalid config is reported where it is read
        later_dirs = _list_later_hook_dirs(host, engine)
    if _is_among(host, hook.parent, later_dirs):
        return InstallerError(
            f"give {engine.title} the hook {hook} (since its start it looks for hooks in {present_dirs}, and "
            f"its configs name {hook.parent} now)",
            remedy=f"restart {engine.unit or engine.title} at a time of your choice",
            code="restart-pending",
        )
    return InstallerError(
        f"give {engine.title} the hook {hook} (it looks for hooks in {present_dirs})",
        remedy=f"add {hook.parent} to hooks_dir in its config, or configure runtimes instead",
        code="engine-flags",
    )


def _list_later_hook_dirs(host: Host, engine: EngineState) -> tuple[PurePosixPath, ...]:
    """List the directories of hooks in configs changed after an engine's start; () for unchanged configs."""
    now = with_configs(host, engine)
    paths = [*now.files]
    if now.drop_in_directory:
        paths.append(now.drop_in_directory)
    if not is_outdated(host, now, paths):
        return ()
    return predict_from_texts(now, contents_of(host, now.files)).hook_dirs


def _is_among(host: Host, directory: PurePosixPath, directories: Iterable[PurePosixPath]) -> bool:
    """Tell whether a directory is among several directories, behind links."""
    return host.resolve(directory) in {host.resolve(path) for path in directories}


def is_outdated(host: Host, engine: EngineState, paths: Iterable[PurePosixPath]) -> bool:
    """Tell whether a config, or the directory of a missing config, was changed after an engine's start."""
    began_s = engine.began_s
    if began_s is None or not engine.kind.reload_misreports:
        return False
    present = []
    for path in paths:
        if host.kind(path) is Kind.ABSENT:
            present.append(path.parent)
        else:
            present.append(path)
    return any(host.changed_s(path) > began_s + TICK_S for path in present)


def is_replaced(host: Host, engine: EngineState) -> bool:
    """Tell whether an engine's program was replaced after the engine's start, as far as times tell."""
    return engine.program is not None and _are_younger(host, engine, [engine.program])


def is_unit_edited(host: Host, engine: EngineState, unit: UnitStart) -> bool:
    """Tell whether a unit's files were changed after an engine's start with a guessed environment."""
    if engine.started is None or not engine.started.guessed:
        return False
    return _are_younger(host, engine, map(PurePosixPath, (*unit.files, *unit.environment_files)))


def _are_younger(host: Host, engine: EngineState, paths: Iterable[PurePosixPath]) -> bool:
    """Tell whether any of some files was changed after an engine's start, as far as times tell."""
    began_s = engine.began_s
    if began_s is None:
        return False
    with suppress(InstallerError):  # a link that other users than root can place
        return any(host.changed_s(path) > began_s + TICK_S for path in paths)
    return False


def contents_of(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, File | None]:
    """Return each config, None for a missing config; raise if a config cannot be read."""
    return {path: host.read(path) for path in sorted(paths)}


def list_targets(engine: EngineState) -> Iterator[PurePosixPath]:
    """Yield the files that an install may write for an engine."""
    if engine.kind.built_in_runtime:
        return
    if engine.hook is not None:
        yield engine.hook
        return
    if engine.drop_in is not None:
        yield engine.drop_in
    if engine.drop_in is None or engine.kind.drop_ins.directory is None:
        yield engine.config


def explain_unwritable(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, InstallerError]:
    """Explain, by path, why files can be neither written nor removed."""
    errors = {}
    for path in paths:
        error = _find_obstacle(host, path)
        if error is not None:
            errors[path] = error
    return errors


def _find_obstacle(host: Host, path: PurePosixPath) -> InstallerError | None:
    """Find an obstacle to both the write and the removal of a file; None for none."""
    real = host.resolve(path)
    if host.kind(real) is Kind.FILE and is_mount_point(host.local_path(real)):
        problem = f"replace {path} (it is mounted as a single file)"
        remedy = f"mount its directory {real.parent} instead"
        return InstallerError(problem, remedy=remedy, code="file-not-replaceable")

    existing = host.directory_above(real)
    if host.kind(existing) is not Kind.DIRECTORY:
        problem = f"write {path} ({existing} is not a directory)"
        return InstallerError(problem, remedy=REMEDIES[ENOTDIR], code="file-operation-failed")
    if READ_ONLY in host.mounted(existing):
        problem = f"write {path} (read-only file system)"
        return InstallerError(problem, remedy=REMEDIES[EROFS], code="file-operation-failed")
    immutable = find_attribute(host, real)
    if immutable is not None:
        problem = f"write {path} (an attribute of {immutable} forbids it: lsattr shows i or a)"
        remedy = f"remove the attribute: chattr -i -a {immutable}"
        return InstallerError(problem, remedy=remedy, code="file-operation-failed")
    return None


def find_attribute(host: Host, real: PurePosixPath) -> PurePosixPath | None:
    """Return the file or the directory with an attribute that keeps root from writing a file; None for none.

    The attribute counts for each process of the host. ``real`` is the file's path without links.
    """
    existing = host.directory_above(real)
    return next((each for each in (real, existing) if is_immutable(host, each)), None)


def list_missing_directories(host: Host, paths: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """List the missing directories above files."""
    missing: set[PurePosixPath] = set()
    for path in paths:
        above = [parent for parent in path.parents if host.kind(parent) is Kind.ABSENT]
        if any(host.link_target(parent) is not None for parent in above):  # a link to nowhere stays
            above = [parent for parent in host.resolve(path).parents if host.kind(parent) is Kind.ABSENT]
        missing.update(above)
    return missing


def write_config(host: Host, write: WriteConfig) -> bool:
    """Write or remove a config; return whether the file was another one before.

    Raises:
        NotBegunError: the config was changed since ``write`` was planned.
    """
    now = host.read(write.path)
    digest = _digest_of(now)
    if digest == _digest_of(write.after):
        return False
    if digest != _digest_of(write.before):
        problem = f"edit {write.path} (another process wrote it at the same moment)"
        raise NotBegunError(problem, remedy="run again", code="config-changed")
    if write.after is None:
        real = host.resolve(write.path)  # a link that led nowhere before us stays
        if write.link:
            host.remove(write.path)  # first: an engine that starts now would not read a link to nowhere
        host.remove(real)
        return True
    if write.link and now is None:
        host.link(write.path, write.link)
    host.replace(write.path, write.after)
    return True


def _digest_of(file: File | None) -> str | None:
    """Return the digest of a file; None for a missing file."""
    return file.digest if file is not None else None


def find_new_links(host: Host, rows: Iterable[ConfigRow]) -> dict[PurePosixPath, str]:
    """Map the paths of files created by us to the targets of links found there, except links to nowhere."""
    links = {}
    for row in rows:
        created = host.resolve(row.path.parent) / row.path.name
        if row.original is not None or row.target not in {None, created}:
            continue
        target = host.link_target(row.path)
        if target is not None and host.kind(row.path) is Kind.FILE:
            links[row.path] = target
    return links
