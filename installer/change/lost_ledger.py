"""Make rows of a ledger for edits that no ledger knows.

These are the edits of NVIDIA's own installer (``--adopt``), and our own if the ledger is lost (``recover``).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.cdi.plan import SPECIFICATION
from installer.change.ledger import Ledger
from installer.change.observe import list_toolkits, observe_adoption
from installer.change.our_runtimes import find_our_runtimes
from installer.change.references import list_runtimes
from installer.config_text import Key, Syntax, Tree, WantedKey, leaves, value_at
from installer.config_text.change import apply
from installer.engines import ENGINES
from installer.engines.config_files import copies_of, walk
from installer.engines.config_keys import BUILT_IN, RUNTIMES
from installer.engines.config_texts import syntax_of, text_of, tree_of
from installer.engines.used_configs import list_used_configs
from installer.errors import InstallerError, Option, Remedy
from installer.host.events import log
from installer.host.files import Host
from installer.model.effective import RUNC_TYPE, is_ours
from installer.model.engine import EngineState
from installer.model.facts import (
    CdiRow,
    ConfigRow,
    EngineRow,
    Facts,
    Owner,
    Record,
    SpecialVersion,
    ToolkitRow,
)
from installer.model.files import DEFAULT_INSTALL_DIR, ROOT, VERSIONS, File, Kind, Layout
from installer.model.options import Options, Places
from installer.model.steps import Part, PartId, sum_rows

HOOK: Final = "nvidia-container-runtime-hook"
DROP_IN: Final = "99-nvidia"  # the stem of NVIDIA's drop-ins; they hold a copy of the engine's whole section
MANY: Final = "*.toml"  # the pattern that NVIDIA's tool adds to containerd's imports
OURS: Final = f"{DROP_IN}*.toml"  # the pattern that we add
REMEDY_OF_NAMED: Final = "if no install follows, remove what names it, or run uninstall --adopt"
CONFIG_SUFFIXES: Final = frozenset({".json", ".toml", ".conf"})  # of drop-ins; config.toml.bak is none


def find_leftovers(
    facts: Facts, options: Options, *, ours: bool = False, unread: Mapping[PurePosixPath, str] | None = None
) -> Part:
    """Return a part with the rows of unrecorded edits, and a note for each.

    By default all edits of NVIDIA's installer count: runtimes, drop-ins, imports and the toolkit's directory.

    Args:
        facts: the facts of the node.
        options: the options of the verb.
        ours: whether only our own keys and our own import count, for a lost ledger.
        unread: configs with our toolkit, each with the name of an engine; engines may no longer read them.
    """
    parts: list[Part] = []
    for engine in facts.engines:
        unread_paths = [path for path, name in (unread or {}).items() if name == engine.name]
        leftovers = _Leftovers(engine, facts, options, ours=ours, unread=unread_paths)
        parts.append(leftovers.as_part())
    rows = sum_rows(parts)
    notes: list[str] = []
    for part in parts:
        notes += part.notes
    toolkit = None
    # NVIDIA's installer always writes config.toml. A directory without config.toml and without a runtime that
    # uses it is an administrator's.
    if facts.toolkit.kind is Kind.DIRECTORY and (rows.engines or facts.toolkit.config is not None):
        notes.append(str(options.layout.toolkit))
        toolkit = ToolkitRow(SpecialVersion.ADOPTED, previous=None, rendered=facts.toolkit.config or "")
    elif rows.engines:
        # With this row the undo looks for containers on these runtimes.
        toolkit = ToolkitRow(SpecialVersion.ADOPTED, previous=None, rendered="")
    return Part(PartId.ADOPTED, rows=replace(rows, toolkit=toolkit), notes=tuple(notes))


class _Leftovers:
    """The search of an engine's configs and hooks for runtimes and hooks of the toolkit."""

    def __init__(
        self,
        engine: EngineState,
        facts: Facts,
        options: Options,
        *,
        ours: bool,
        unread: Collection[PurePosixPath] = (),
    ) -> None:
        self.engine = engine
        self.facts = facts
        self.toolkit = options.layout.toolkit
        self.runtime_name = options.runtime_name
        self.ours = ours
        # The import of our drop-in is gone if the owner has written the root config anew.
        unimported = []
        for path in unread:
            if path not in engine.files and _is_drop_in(facts, path):
                unimported.append(path)
        self.trees: dict[PurePosixPath, Tree] = {}
        self.runtimes: dict[PurePosixPath, dict[Key, PurePosixPath]] = {}
        # A drop-in of this name is NVIDIA's as a whole; nvidia-ctk writes other drop-ins to the same path.
        self.drop_ins: set[PurePosixPath] = set()
        self._read_configs((*engine.files, *unimported))
        if ours and facts.toolkit.kind is Kind.ABSENT:
            self._drop_others_drop_ins()
        for path in unimported:
            # The other keys may be the owner's, and he may import the file again.
            if path in self.trees and self.holds_more(path):
                del self.trees[path]

    def _read_configs(self, paths: Iterable[PurePosixPath]) -> None:
        """Fill in the trees of the configs, and the runtimes of the toolkit in them."""
        for path in paths:
            if self.facts.contents[path] is None:
                continue
            tree = tree_of(self.facts.contents[path], path)
            if self.ours:
                runtimes = find_our_runtimes(tree, self.toolkit, self.runtime_name)
            else:
                runtimes = dict(list_runtimes(tree, self.toolkit))
            self.trees[path] = tree
            self.runtimes[path] = runtimes
            if runtimes and path.stem == DROP_IN:
                self.drop_ins.add(path)

    def _drop_others_drop_ins(self) -> None:
        """Leave out the drop-ins that may be another's: our link is gone, so that only the path tells.

        Only our usual drop-in counts as ours, with nothing in it but our runtimes.
        """
        usual = self.engine.kind.drop_ins.usual
        for path in self.drop_ins:
            is_elsewhere = usual is not None and path != usual
            if is_elsewhere or self.holds_more(path):
                del self.trees[path]

    def as_part(self) -> Part:
        """Return the part with the rows of the engine, and a note for each."""
        engine = self.engine
        runtimes: dict[str, PurePosixPath] = {}
        configs: list[ConfigRow] = []
        notes: list[str] = []
        for path, tree in self.trees.items():
            started = self.runtimes[path]
            for key, binary in started.items():
                runtimes[key[-1]] = binary
            if path in self.drop_ins and not self.ours:
                configs.append(self.whole(path))
                notes.append(f"{path} as a whole")
                continue
            wanted_keys = (*self.find_keys(tree, (*started, *self.beside(path))), *self.imports(tree))
            if not wanted_keys:
                continue
            configs.append(self.edited(path, wanted_keys))
            names = ", ".join(sorted(key[-1] for key in started)) or "an import"
            notes.append(f"{names} in {path}")
            if self.ours and path not in self.drop_ins and _defines_built_in(tree, started):
                # Our install writes the same definition if the config names no runtime.
                notes.append(f"{BUILT_IN} in {path}, which stays: it may be an administrator's")
        hooks = [path for path in engine.hooks if _is_hook(self.facts, path, self.toolkit)]
        for path in hooks:
            configs.append(self.whole(path))
            notes.append(f"the hook {path}")
        engines: tuple[EngineRow, ...] = ()
        if runtimes or hooks:
            engines = (EngineRow(engine.name, engine.socket, engine.unit, runtimes),)
        return Part(PartId.ADOPTED, rows=Record(engines=engines, configs=tuple(configs)), notes=tuple(notes))

    def whole(self, path: PurePosixPath) -> ConfigRow:
        """Make the row of a whole file for an undo to remove."""
        file = self.facts.contents[path]
        digests = (file.digest,) if file else ()
        return ConfigRow(self.engine.name, path, syntax=None, original=None, ours=digests, edits=())

    def edited(self, path: PurePosixPath, wanted_keys: tuple[WantedKey, ...]) -> ConfigRow:
        """Make the row of a file for an undo to remove the wanted keys."""
        syntax = syntax_of(path, text_of(self.facts.contents[path], path), self.engine.name)
        empty = "{}" if syntax is Syntax.JSON else ""
        _, edits = apply(empty, wanted_keys, syntax, name=str(path))
        return ConfigRow(self.engine.name, path, syntax, original=None, ours=(), edits=edits)

    def beside(self, path: PurePosixPath) -> set[Key]:
        """Return the key of the built-in runtime, which our drop-in names beside our runtime."""
        if not self.ours or path.stem != DROP_IN:
            return set()
        return {(*key[:-1], BUILT_IN) for key in self.runtimes[path]}

    def holds_more(self, path: PurePosixPath) -> bool:
        """Tell whether a drop-in holds more than the toolkit's runtimes and the choice of the default."""
        runtimes = {*self.runtimes[path], *self.beside(path)}
        default = self.engine.kind.default_key
        ours: set[Key] = {("version",)}
        for runtime in runtimes:
            ours.add((*runtime[:-2], default))
        for key, _ in leaves(self.trees[path]):
            is_below_runtime = any(key[: len(runtime)] == runtime for runtime in runtimes)
            if key not in ours and not is_below_runtime:
                return True
        return False

    def find_keys(self, tree: Tree, keys: tuple[Key, ...]) -> Iterator[WantedKey]:
        """Yield the keys of an administrator's file with probable values of NVIDIA's tool."""
        for key in keys:
            default = (*key[:-2], self.engine.kind.default_key)
            if value_at(tree, default) == key[-1]:
                yield WantedKey(default, key[-1])
            runtime = value_at(tree, key)
            if isinstance(runtime, dict):
                for below, value in leaves({key[-1]: runtime}):
                    yield WantedKey(key[:-1] + below, value)

    def imports(self, tree: Tree) -> Iterator[WantedKey]:
        """Yield the imports to remove.

        For a lost ledger these are our own imports of drop-ins, else the imports of NVIDIA's drop-ins alone.
        """
        imports = tree.get("imports")
        if not self.engine.kind.drop_ins.is_imported or not isinstance(imports, list):
            return
        config = self.engine.config
        kind = self.engine.kind
        own = set()
        for path in self.trees:
            if self.runtimes[path] and path != config:
                own.add(kind.find_own_import(path))
        for pattern in imports:
            if not isinstance(pattern, str):
                continue
            place = PurePosixPath(pattern)
            if self.ours:
                is_removed = place in own
            else:
                is_removed = place in self.drop_ins or self.loads_only_drop_ins(place)
            if is_removed:
                yield WantedKey(("imports",), pattern, member=True)

    def loads_only_drop_ins(self, pattern: PurePosixPath) -> bool:
        """Tell whether an import of many files loads NVIDIA's drop-ins alone."""
        if pattern.name not in {MANY, OURS}:
            return False
        loaded = {path for path in self.engine.files if path.parent == pattern.parent}
        loaded -= {self.engine.config}
        return bool(loaded) and loaded <= self.drop_ins


def _defines_built_in(tree: Tree, keys: Iterable[Key]) -> bool:
    """Tell whether a config defines the built-in runtime, beside one of the ``keys``, as our install does."""
    for key in keys:
        definition = value_at(tree, (*key[:-1], BUILT_IN))
        if definition == {"runtime_type": RUNC_TYPE}:
            return True
    return False


def find_packages(facts: Facts, options: Options) -> Iterator[str]:
    """Yield the runtimes with NVIDIA's binaries elsewhere, as nvidia-ctk sets runtimes up for packages."""
    for engine in facts.engines:
        for path in engine.files:
            tree = tree_of(facts.contents[path], path)
            known = dict(list_runtimes(tree, options.layout.toolkit))
            for key, value in leaves(tree):
                is_known = any(key[: len(each)] == each for each in known)
                if is_ours(value) and RUNTIMES in key and not is_known:
                    yield f"{key[key.index(RUNTIMES) + 1]} in {path}: it starts {value}"


def _is_drop_in(facts: Facts, path: PurePosixPath) -> bool:
    """Tell whether a file has the name of our drop-ins and is a valid config."""
    with suppress(InstallerError):
        return path.stem == DROP_IN and bool(tree_of(facts.contents[path], path))
    return False


def _is_hook(facts: Facts, path: PurePosixPath, toolkit: PurePosixPath) -> bool:
    """Tell whether a file is an OCI hook with a program of the toolkit."""
    with suppress(InstallerError):  # no engine can read this file
        program = value_at(tree_of(facts.contents[path], path), ("hook", "path"))
        return isinstance(program, str) and PurePosixPath(program).is_relative_to(toolkit)
    return False


# By install-dir: the configs that name its toolkit, each with its engine.
Named = Mapping[PurePosixPath, Mapping[PurePosixPath, str]]


def find_toolkits(host: Host, options: Options) -> Named:
    """Search configs and hooks for install-dirs, without asking any engine."""
    named: dict[PurePosixPath, dict[PurePosixPath, str]] = {}
    for name, path in _list_configs(host, options):
        with suppress(InstallerError):  # an undo could not edit an unreadable file
            for directory in list_toolkits(host.read(path)):
                named.setdefault(directory, {})[path] = name
    return named


def _list_configs(host: Host, options: Options) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the possible configs of engines, each once, with the engine's name."""
    configs = [*_list_at_usual_places(host, options)]
    configs += list_used_configs(host, options.places)
    yield from dict.fromkeys(configs)


def _list_at_usual_places(host: Host, options: Options) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield root configs, drop-ins and hooks at the places of the options, or else at the usual places."""
    for engine in ENGINES.values():
        if engine.built_in_runtime:
            continue
        place = options.places.get(engine.name, Places())
        config = place.config or engine.config
        drop_in = place.drop_in or engine.drop_ins.usual
        paths = [config]
        if drop_in:
            paths.append(drop_in)
        paths += copies_of(host, engine)
        directories = [config.parent, config.parent / "conf.d", engine.drop_ins.directory, engine.hook_dir]
        if engine.hook_dir and options.crio_hook:
            directories.append(options.crio_hook.parent)
        for directory in filter(None, directories):
            with suppress(InstallerError):
                if directory == engine.drop_ins.directory and not engine.drop_ins.pattern:
                    beside = list(walk(host, directory))  # CRI-O reads the directories below, too
                else:
                    beside = [directory / name for name in host.names(directory)]
                paths += [path for path in beside if path.suffix in CONFIG_SUFFIXES]
        for path in paths:
            yield engine.name, path


def find_left_behind(host: Host, options: Options) -> dict[PurePosixPath, str]:
    """Find the configs with our toolkit, and their engines; none if a toolkit of others has the same path."""
    kind = host.kind(options.layout.toolkit, last=False)
    named = find_toolkits(host, options).get(options.install_dir, {})
    link = host.link_target(options.layout.toolkit) or ""
    if link.startswith(VERSIONS):
        return dict(named)
    if kind is not Kind.ABSENT:
        return {}
    left_behind: dict[PurePosixPath, str] = {}
    for path, engine in named.items():
        if _is_written_by_install(host.read(path), path, options):
            left_behind[path] = engine
    return left_behind


def list_naming_missing_toolkit(host: Host, options: Options) -> list[PurePosixPath]:
    """List the configs that name our toolkit if the toolkit is not there: their runtimes start no container.

    Nobody can tell whether an owner has prepared such a config for an install, or an install is lost.
    """
    if host.kind(options.layout.toolkit, last=False) is not Kind.ABSENT:
        return []
    return sorted(find_toolkits(host, options).get(options.install_dir, {}))


def _is_written_by_install(file: File | None, path: PurePosixPath, options: Options) -> bool:
    """Tell whether a config without a toolkit on the node can only come from an install of ours.

    An administrator may have prepared the plain runtime for a first install, but hardly the others beside it.
    A hook is no preparation, for no container starts while its program is missing.
    An unreadable config counts, so that the verbs report it: nobody can tell what it holds.
    """
    toolkit = options.layout.toolkit
    try:
        tree = tree_of(file, path)
    except InstallerError:
        return True
    if value_at(tree, ("hook", "path")) == str(toolkit / HOOK):
        return True
    return bool(find_our_runtimes(tree, toolkit, options.runtime_name))


def find_install_dir(host: Host, options: Options, *, tell: bool = True) -> Options:
    """Set the install-dir of the options to the install-dir in the engines' configs.

    Raises:
        InstallerError: the configs name several install-dirs, or not the install-dir of the options.
    """
    if options.adopt or host.exists(options.layout.home):
        return options
    named = find_toolkits(host, options)
    asked = options.install_dir
    found = []
    for place in named:
        if host.exists(Layout(place).home):
            found.append(place)
    found.sort()
    is_usual = asked == DEFAULT_INSTALL_DIR
    if not found:
        return options
    if not is_usual and asked in named:  # its ledger may be lost
        return options
    if not is_usual or len(found) > 1:
        configs = sorted(map(str, named[found[0]]))
        verb = "names" if len(configs) == 1 else "name"
        problem = f"find an installation in {asked} ({' and '.join(configs)} {verb} the one in {found[0]})"
        remedy = Remedy("name it: ", Option("install-dir", " or ".join(map(str, found))))
        raise InstallerError(problem, remedy=remedy, code="installed-elsewhere")
    if tell:
        log.info("install directory found", install_dir=str(found[0]))
    return replace(options, install_dir=found[0])


def recover(host: Host, options: Options, ledger: Ledger, *, undoes: bool = False) -> None:
    """Write a new ledger of our edits in the configs, if the ledger is lost.

    Args:
        host: the node.
        options: the options of the verb.
        ledger: the open ledger; nothing is done unless this ledger is empty.
        undoes: whether an undo follows at once; the logged remedy says so.
    """
    if not ledger.record.empty:
        return
    record, notes = find_lost_record(host, options)
    if record.empty:
        return
    known = ledger.record
    stays = list(_list_staying_directories(host, options.install_dir, known.directories))
    _warn_of_lost_ledger(record, notes, stays, undoes=undoes)
    ledger.write(replace(record, directories=known.directories, published=known.published, turn=known.turn))


def find_lost_record(host: Host, options: Options) -> tuple[Record, list[str]]:
    """Return the content of a lost ledger as far as the node shows it, and the names of what was found."""
    record = Record()
    notes: list[str] = []
    part = find_lost(host, options)
    if part is not None:
        record = part.rows
        notes += part.notes

    # A toolkit is ours if its link leads to our versions, or if another toolkit was set aside for it.
    layout = options.layout
    aside = host.kind(layout.replaced, last=False) is Kind.DIRECTORY
    link = host.link_target(layout.toolkit) or ""
    if link.startswith(VERSIONS) or (aside and not host.exists(layout.toolkit)):
        former_link = host.link_target(layout.replaced)
        if former_link is not None and former_link.startswith(VERSIONS):  # left by an interrupted exchange
            former_link = None
        toolkit = ToolkitRow(
            SpecialVersion.ADOPTED, previous=None, rendered="", replaced=aside, linked=former_link
        )
        record = replace(record, toolkit=toolkit)
        notes.append(str(layout.toolkit))

    specification = find_lost_specification(host, layout)
    if specification is not None:
        record = replace(record, configs=(*record.configs, specification), cdi=CdiRow(()))
        notes.append(str(specification.path))
    return record, notes


def _list_staying_directories(
    host: Host, install_dir: PurePosixPath, made: Collection[PurePosixPath]
) -> Iterator[PurePosixPath]:
    """Yield the install-dir and each directory above with nothing else, without those this verb has ``made``.

    The lost ledger knew who made them. A directory right below / belongs to every host, also if it is empty.
    """
    if install_dir not in made:
        yield install_dir
    name = install_dir.name
    for path in install_dir.parents:
        if ROOT in {path, path.parent} or host.names(path) != (name,):
            return
        name = path.name
        if path not in made:
            yield path


def _warn_of_lost_ledger(
    record: Record, notes: list[str], stays: list[PurePosixPath], *, undoes: bool
) -> None:
    """Log that the ledger was lost, and the engines whose former default runtime is not known.

    Args:
        record: the rows of the new ledger.
        notes: the names of what was found.
        stays: the directories that an undo does not remove, though the lost install may have made them.
        undoes: whether an undo follows at once.
    """
    when = "after this" if undoes else "no action is needed now; after the next"
    remedy = f"{when} uninstall compare the configs with your own copies"
    if stays:
        them = "it is" if len(stays) == 1 else "they are"
        remedy += f", and remove {' and '.join(map(str, stays))} if {them} empty"
    log.warning("ledger lost", found=notes, remedy=remedy)
    for row in record.configs:
        edited_names = {edit.key[-1] for edit in row.edits}
        if edited_names and ENGINES[row.engine].default_key in edited_names:
            remedy = "after an uninstall set the default runtime that it had before the install"
            log.warning("former default not known", engine=row.engine, path=str(row.path), remedy=remedy)


def find_lost_specification(host: Host, layout: Layout) -> ConfigRow | None:
    """Make the row of an unrecorded CDI specification with the hook of our toolkit."""
    file = host.read(SPECIFICATION)
    is_nvidias = host.kind(layout.toolkit, last=False) is Kind.DIRECTORY
    if file is None or is_nvidias or f'"{layout.cdi_hook}"'.encode() not in file.content:
        return None
    return ConfigRow(Owner.CDI, SPECIFICATION, syntax=None, original=None, ours=(file.digest,), edits=())


def find_lost(host: Host, options: Options) -> Part | None:
    """Make a part with rows for our edits in the configs; None without edits.

    Raises:
        InstallerError: a config cannot be read.
    """
    named = find_left_behind(host, options)
    if not named:
        return None
    # Engines that are named are observed even if they are stopped: they will read their configs at the start.
    options = replace(options, engines=tuple(dict.fromkeys(named.values())))
    facts = observe_adoption(host, options, named)
    leftovers = find_leftovers(facts, options, ours=True, unread=named)
    return leftovers if leftovers.rows.configs else None
