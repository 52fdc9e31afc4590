"""What no ledger in sight knows, as rows of one: what NVIDIA's own installer left, and what we lost."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.cdi.plan import SPECIFICATION
from installer.change.ledger import Ledger
from installer.change.observe import list_toolkits, observe_adoption
from installer.change.references import list_runtimes
from installer.config_text import Key, Syntax, Tree, Want, leaves, value_at
from installer.config_text.change import apply
from installer.engines import ENGINES
from installer.engines.config_edits import BUILT_IN, RUNTIMES, syntax_of, text_of, tree_of
from installer.engines.config_files import copies_of
from installer.engines.containerd.effective import RUNC_TYPE, own_import
from installer.errors import InstallerError, Option, Remedy
from installer.host.events import log
from installer.host.files import Host
from installer.model.engine_spec import is_ours
from installer.model.facts import (
    ADOPTED,
    OWNER,
    CdiRow,
    ConfigRow,
    EngineRow,
    EngineState,
    Facts,
    Record,
    ToolkitRow,
)
from installer.model.files import DEFAULT_INSTALL_DIR, VERSIONS, Kind, Layout
from installer.model.options import Options, Places
from installer.model.steps import Part, sum_rows

ID: Final = "adopted"
CDI: Final = b"/toolkit/nvidia-container-runtime.cdi"
HOOK: Final = b"/toolkit/nvidia-container-runtime-hook"
DROP_IN: Final = "99-nvidia"  # the stem of NVIDIA's drop-ins; they hold a copy of the engine's whole section
MANY: Final = "*.toml"  # what NVIDIA's tool adds to containerd's imports
OURS: Final = f"{DROP_IN}*.toml"  # and what we add
CONFIG_SUFFIXES: Final = frozenset({".json", ".toml", ".conf"})  # where drop-ins lie; not config.toml.bak


def find_leftovers(
    facts: Facts, options: Options, *, ours: bool = False, unread: Mapping[PurePosixPath, str] | None = None
) -> Part:
    """Return rows, and a note for each, for NVIDIA's runtimes, drop-ins, imports and directory.

    If it is ``ours``, of a ledger that is lost, only what we write ourselves goes: keys, and our own import.
    ``unread`` are configs, by engine, that name our toolkit and may be read no more.
    """
    toolkit_dir = options.layout.toolkit
    parts: list[Part] = []
    for engine in facts.engines:
        beside = [path for path, name in (unread or {}).items() if name == engine.name]
        parts.append(_Leftovers(engine, facts, toolkit_dir, ours=ours, unread=beside).as_part())
    rows, found = sum_rows(parts), [note for part in parts for note in part.notes]
    toolkit = None
    # Its installer writes that config in any case: without it, and unused, a directory is an administrator's.
    if facts.toolkit.kind is Kind.DIRECTORY and (rows.engines or facts.toolkit.config is not None):
        found.append(str(options.layout.toolkit))
        toolkit = ToolkitRow(ADOPTED, None, facts.toolkit.config or "")
    elif rows.engines:
        toolkit = ToolkitRow(ADOPTED, None, "")  # so that the containers on its runtimes are looked for
    return Part(ID, rows=replace(rows, toolkit=toolkit), notes=tuple(found))


class _Leftovers:
    """What starts the toolkit in the configs and hooks of one engine."""

    def __init__(
        self,
        engine: EngineState,
        facts: Facts,
        toolkit: PurePosixPath,
        *,
        ours: bool,
        unread: Collection[PurePosixPath] = (),
    ) -> None:
        self.engine, self.facts, self.toolkit, self.ours = engine, facts, toolkit, ours
        # The import of our drop-in may be gone: its owner has written the root file anew.
        unread = [path for path in unread if path not in engine.files and _is_drop_in(facts, path)]
        there = (path for path in (*engine.files, *unread) if facts.contents[path] is not None)
        self.trees = {path: tree_of(facts.contents[path], path) for path in there}
        self.runtimes = {path: dict(list_runtimes(tree, toolkit)) for path, tree in self.trees.items()}
        # NVIDIA's as a whole; nvidia-ctk writes others to the same path.
        self.drop_ins = {path for path, found in self.runtimes.items() if found and path.stem == DROP_IN}
        if ours and facts.toolkit.kind is Kind.ABSENT:  # not even our link is left to tell whose they are
            usual = engine.spec.drop_ins.usual
            for path in [each for each in self.drop_ins if each != (usual or each) or self.holds_more(each)]:
                del self.trees[path]
        for path in unread:  # what else it holds may be its owner's, and be read again one day
            if path in self.trees and self.holds_more(path):
                del self.trees[path]

    def as_part(self) -> Part:
        """Return rows for what is there."""
        engine, configs, found = self.engine, [], []
        runtimes: dict[str, PurePosixPath] = {}
        for path, tree in self.trees.items():
            started = self.runtimes[path]
            runtimes |= {key[-1]: binary for key, binary in started.items()}
            if path in self.drop_ins and not self.ours:
                configs.append(self.whole(path))
                found.append(f"{path} as a whole")
            elif wants := (*self.wants(tree, (*started, *self.beside(path))), *self.imports(tree)):
                syntax = syntax_of(path, text_of(self.facts.contents[path], path), engine.name)
                edits = apply("{}" if syntax is Syntax.JSON else "", wants, syntax, name=str(path))[1]
                configs.append(ConfigRow(engine.name, path, syntax, None, (), edits))
                names = ", ".join(sorted(key[-1] for key in started)) or "an import"
                found.append(f"{names} in {path}")
                built_in = (value_at(tree, (*key[:-1], BUILT_IN)) for key in started if self.ours)
                if path not in self.drop_ins and {"runtime_type": RUNC_TYPE} in built_in:
                    # An install writes the same where no runtime is named.
                    found.append(f"{BUILT_IN} in {path}, which stays: it may be an administrator's")
        hooks = tuple(path for path in engine.hooks if _is_hook(self.facts, path, self.toolkit))
        configs += [self.whole(path) for path in hooks]
        found += [f"the hook {path}" for path in hooks]
        row = EngineRow(engine.name, engine.socket, engine.unit, runtimes)
        engines = (row,) if runtimes or hooks else ()
        return Part(ID, rows=Record(engines=engines, configs=tuple(configs)), notes=tuple(found))

    def whole(self, path: PurePosixPath) -> ConfigRow:
        """Return the row of a file that goes as a whole."""
        file = self.facts.contents[path]
        return ConfigRow(self.engine.name, path, None, None, (file.digest,) if file else (), ())

    def beside(self, path: PurePosixPath) -> set[Key]:
        """Return the key of the built-in runtime that a drop-in of ours names beside ours."""
        ours = self.ours and path.stem == DROP_IN
        return {(*key[:-1], BUILT_IN) for key in self.runtimes[path]} if ours else set()

    def holds_more(self, path: PurePosixPath) -> bool:
        """Tell whether a drop-in holds more than runtimes of the toolkit, and which is the default."""
        runtimes = {*self.runtimes[path], *self.beside(path)}
        default = self.engine.spec.default_key
        ours = {("version",), *((*key[:-2], default) for key in runtimes)}
        return any(
            key not in ours and not any(key[: len(runtime)] == runtime for runtime in runtimes)
            for key, _ in leaves(self.trees[path])
        )

    def wants(self, tree: Tree, keys: tuple[Key, ...]) -> Iterator[Want]:
        """Yield what NVIDIA's tool did to a file that is not its own, as far as it can be known."""
        for key in keys:
            default = (*key[:-2], self.engine.spec.default_key)
            if value_at(tree, default) == key[-1]:
                yield Want(default, key[-1])
            runtime = value_at(tree, key)
            if isinstance(runtime, dict):
                yield from (Want(key[:-1] + below, value) for below, value in leaves({key[-1]: runtime}))

    def imports(self, tree: Tree) -> Iterator[Want]:
        """Yield the imports that are our own for a drop-in, or that take nothing but NVIDIA's drop-ins."""
        imports, drop_ins = tree.get("imports"), self.engine.spec.drop_ins
        if not drop_ins.is_imported or not isinstance(imports, list):
            return
        config = self.engine.config
        own = {own_import(path) for path in self.trees if self.runtimes[path] and path != config}
        for pattern in (each for each in imports if isinstance(each, str)):
            place = PurePosixPath(pattern)
            taken = {path for path in self.engine.files if path.parent == place.parent} - {config}
            many = place.name in {MANY, OURS} and taken and taken <= self.drop_ins
            if place in own if self.ours else many or place in self.drop_ins:
                yield Want(("imports",), pattern, member=True)


def find_packages(facts: Facts, options: Options) -> Iterator[str]:
    """Yield the runtimes that start NVIDIA's binaries elsewhere, as nvidia-ctk sets them up for packages."""
    for path in (path for engine in facts.engines for path in engine.files):
        tree = tree_of(facts.contents[path], path)
        known = dict(list_runtimes(tree, options.layout.toolkit))
        for key, value in leaves(tree):
            if is_ours(value) and RUNTIMES in key and not any(key[: len(each)] == each for each in known):
                yield f"{key[key.index(RUNTIMES) + 1]} in {path}: it starts {value}"


def _is_drop_in(facts: Facts, path: PurePosixPath) -> bool:
    """Tell whether a file has the name of our drop-ins and can be read as one."""
    with suppress(InstallerError):
        return path.stem == DROP_IN and bool(tree_of(facts.contents[path], path))
    return False


def _is_hook(facts: Facts, path: PurePosixPath, toolkit: PurePosixPath) -> bool:
    with suppress(InstallerError):  # what no engine could read
        program = value_at(tree_of(facts.contents[path], path), ("hook", "path"))
        return isinstance(program, str) and PurePosixPath(program).is_relative_to(toolkit)
    return False


# By install-dir: the configs that name its toolkit, and whose they are.
Named = Mapping[PurePosixPath, Mapping[PurePosixPath, str]]


def find_toolkits(host: Host, options: Options) -> Named:
    """Return the install-dirs that configs and hooks of engines name, by file and engine; none is asked."""
    named: dict[PurePosixPath, dict[PurePosixPath, str]] = {}
    for name, path in _list_configs(host, options):
        with suppress(InstallerError):  # what cannot be read names nothing that could be undone
            for directory in list_toolkits(host.read(path)):
                named.setdefault(directory, {})[path] = name
    return named


def _list_configs(host: Host, options: Options) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the configs that an engine may read: its own, and what lies where drop-ins and hooks do."""
    for engine in ENGINES.values():
        if engine.finds:
            continue
        place = options.places.get(engine.name, Places())
        config, drop_in = place.config or engine.config, place.drop_in or engine.drop_ins.usual
        found = [config, *([drop_in] if drop_in else ()), *copies_of(host, engine)]
        directories = [config.parent, config.parent / "conf.d", engine.drop_ins.directory, engine.hook_dir]
        if engine.hook_dir and options.crio_hook:
            directories.append(options.crio_hook.parent)
        for directory in filter(None, directories):
            with suppress(InstallerError):
                beside = (directory / name for name in host.names(directory))
                found += [path for path in beside if path.suffix in CONFIG_SUFFIXES]
        yield from ((engine.name, path) for path in dict.fromkeys(found))


def find_left_behind(host: Host, options: Options) -> dict[PurePosixPath, str]:
    """Return the configs that name our toolkit, by engine; none where NVIDIA's has its name."""
    kind = host.kind(options.layout.toolkit, last=False)
    named = find_toolkits(host, options).get(options.install_dir, {})
    if kind is Kind.DIRECTORY:
        return {}
    if kind is not Kind.ABSENT:
        return dict(named)
    left: dict[PurePosixPath, str] = {}
    for path, engine in named.items():
        file = host.read(path)
        # Where nothing has the name, an administrator may have written another entry ahead of the first
        # install. No container starts with a hook that is not there, so that is nobody's preparation.
        if file is not None and (CDI in file.content or HOOK in file.content):
            left[path] = engine
    return left


def find_install_dir(host: Host, options: Options, *, tell: bool = True) -> Options:
    """Return options with the install-dir that engines name; InstallerError: several, or another one."""
    if options.adopt or host.exists(options.layout.home):
        return options
    named, asked = find_toolkits(host, options), options.install_dir
    found = sorted(place for place in named if host.exists(Layout(place).home))
    is_usual = asked == DEFAULT_INSTALL_DIR
    if not found or (not is_usual and asked in named):  # then its ledger is lost, or nothing is
        return options
    if not is_usual or len(found) > 1:
        configs = " and ".join(map(str, sorted(named[found[0]])))
        problem = f"find an installation in {asked} ({configs} names the one in {found[0]})"
        remedy = Remedy("name it: ", Option("install-dir", " or ".join(map(str, found))))
        raise InstallerError(problem, remedy=remedy, code="installed-elsewhere")
    if tell:
        log.info("install directory found", install_dir=str(found[0]))
    return replace(options, install_dir=found[0])


def recover(host: Host, options: Options, ledger: Ledger, *, undoes: bool = False) -> None:
    """Write down what configs show to be ours where the ledger that knew it is lost."""
    if not ledger.held.empty:
        return
    part, layout = find_lost(host, options), options.layout
    held, found = (part.rows, part.notes) if part else (Record(), ())
    # A toolkit that is ours by where its name leads, or that stands in another's place.
    aside = host.kind(layout.replaced, last=False) is Kind.DIRECTORY
    link = host.link_target(layout.toolkit) or ""
    if link.startswith(VERSIONS) or (aside and not host.exists(layout.toolkit)):
        toolkit = ToolkitRow(ADOPTED, None, "", replaced=aside)
        held, found = replace(held, toolkit=toolkit), (*found, str(layout.toolkit))
    if specification := find_lost_specification(host, options.layout):
        held = replace(held, configs=(*held.configs, specification), cdi=CdiRow(()))
        found = (*found, str(specification.path))
    if not held.empty:
        when = "after this" if undoes else "no action is needed now; after the next"
        remedy = f"{when} uninstall compare the configs with your own copies, "
        remedy += f"and remove {options.install_dir} if it is empty"
        log.warning("ledger lost", found=list(found), remedy=remedy)
        for row in held.configs:
            if any(edit.key[-1] == ENGINES[row.engine].default_key for edit in row.edits):
                remedy = "after an uninstall set the default runtime that it had before the install"
                log.warning("former default not known", engine=row.engine, path=str(row.path), remedy=remedy)
        known = ledger.held
        ledger.write(replace(held, directories=known.directories, published=known.published))


def find_lost_specification(host: Host, layout: Layout) -> ConfigRow | None:
    """Return the row of a CDI specification that no ledger knows: it names the hook of our toolkit."""
    file = host.read(SPECIFICATION)
    is_nvidias = host.kind(layout.toolkit, last=False) is Kind.DIRECTORY
    if file is None or is_nvidias or f'"{layout.cdi_hook}"'.encode() not in file.content:
        return None
    return ConfigRow(OWNER, SPECIFICATION, None, None, (file.digest,), ())


def find_lost(host: Host, options: Options) -> Part | None:
    """Return rows for what configs show to be ours, None where nothing; InstallerError: one is unreadable."""
    named = find_left_behind(host, options)
    if not named:
        return None
    # Named, an engine that is stopped is looked at as well: it will read its config when it starts.
    options = replace(options, engines=tuple(dict.fromkeys(named.values())))
    facts = observe_adoption(host, options, named)
    found = find_leftovers(facts, options, ours=True, unread=named)
    return found if found.rows.configs else None
