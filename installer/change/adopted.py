"""What NVIDIA's own installer left on a node, as rows of a ledger: so an undo removes it like our own."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.config_text import Edit, Key, Tree
from installer.engines import ENGINES
from installer.engines.config_edits import BUILT_IN, RUNTIMES, syntax_of, text_of, tree_of
from installer.engines.containerd.effective import own_import
from installer.errors import InstallerError
from installer.model.engine_spec import OUR_BINARIES, DropInKind, is_ours, leaves, value_at
from installer.model.facts import EngineState, Facts
from installer.model.files import Kind
from installer.model.options import Options
from installer.model.record import ConfigRow, EngineRow, Record, ToolkitRow
from installer.model.steps import Part
from installer.payload.plan import ADOPTED

ID: Final = "adopted"
DROP_IN: Final = "99-nvidia"  # the stem of NVIDIA's drop-ins; they hold a copy of the engine's whole section
MANY: Final = "*.toml"  # what NVIDIA's tool adds to containerd's imports
OURS: Final = f"{DROP_IN}*.toml"  # and what we add


def adoption(facts: Facts, options: Options, *, ours: bool = False) -> Part:
    """Return rows for what is NVIDIA's: runtimes that start its toolkit, drop-ins and imports, its directory.

    They are what an undo takes back, with a note for each.

    If it is ``ours``, of a ledger that is lost, only what we write ourselves goes: keys, and our own import.
    """
    parts = [_of_engine(engine, facts, options.layout.toolkit, ours=ours) for engine in facts.engines]
    engines = tuple(row for part in parts for row in part.rows.engines)
    configs = tuple(row for part in parts for row in part.rows.configs)
    found = [note for part in parts for note in part.notes]
    toolkit = None
    # Its installer writes that config in any case: without it, and unused, a directory is somebody else's.
    if facts.toolkit.kind is Kind.DIRECTORY and (engines or facts.toolkit.config is not None):
        found.append(str(options.layout.toolkit))
        toolkit = ToolkitRow(ADOPTED, None, facts.toolkit.config or "")
    elif engines:
        toolkit = ToolkitRow(ADOPTED, None, "")  # so that the containers on its runtimes are looked for
    return Part(ID, rows=Record(toolkit=toolkit, engines=engines, configs=configs), notes=tuple(found))


def _of_engine(engine: EngineState, facts: Facts, toolkit: PurePosixPath, *, ours: bool) -> Part:
    """Return rows for what is NVIDIA's, or ``ours``, in the configs and hooks of one engine."""
    configs, found = [], []
    runtimes: dict[str, PurePosixPath] = {}
    wholes = frozenset(() if ours else _drop_ins(engine, facts, toolkit))
    own = frozenset(_own_imports(engine, facts, toolkit) if ours else ())
    for path in engine.files:
        file = facts.contents[path]
        if file is None:
            continue
        tree = tree_of(file, path)
        theirs = dict(_runtimes(tree, toolkit))
        runtimes |= {key[-1]: binary for key, binary in theirs.items()}
        if path in wholes:
            configs.append(_whole(engine.name, path, facts))
            found.append(f"{path} as a whole")
        elif edits := (
            *_edits(engine, tree, (*theirs, *(_beside(path, theirs) if ours else ()))),
            *_imports(engine, tree, wholes, own),
        ):
            syntax = syntax_of(path, text_of(file, path), engine.name)
            configs.append(ConfigRow(engine.name, path, syntax, None, (), edits))
            names = ", ".join(sorted(key[-1] for key in theirs)) or "an import"
            found.append(f"{names} in {path}")
    hooks = tuple(path for path in engine.hooks if _is_hook(facts, path, toolkit))
    configs += [_whole(engine.name, path, facts) for path in hooks]
    found += [f"the hook {path}" for path in hooks]
    row = EngineRow(engine.name, engine.socket, engine.unit, tuple(runtimes.items()))
    engines = (row,) if runtimes or hooks else ()
    return Part(ID, rows=Record(engines=engines, configs=tuple(configs)), notes=tuple(found))


def _beside(path: PurePosixPath, runtimes: Iterable[Key]) -> set[Key]:
    """Return the key of the built-in runtime that a drop-in of ours names beside ours."""
    return {(*key[:-1], BUILT_IN) for key in runtimes} if path.stem == DROP_IN else set()


def without_nvidias(facts: Facts, options: Options) -> Facts:
    """Return the facts without drop-ins that have not our name, or hold more: they may be NVIDIA's."""
    toolkit = options.layout.toolkit
    engines = []
    for engine in facts.engines:
        theirs = {
            path
            for path in _drop_ins(engine, facts, toolkit)
            if path != (ENGINES[engine.name].drop_ins.usual or path)
            or _holds_more(engine, facts, path, toolkit)
        }
        engines.append(replace(engine, files=tuple(path for path in engine.files if path not in theirs)))
    return replace(facts, engines=tuple(engines))


def _holds_more(engine: EngineState, facts: Facts, path: PurePosixPath, toolkit: PurePosixPath) -> bool:
    """Tell whether a drop-in holds more than runtimes that start the toolkit, and which is the default."""
    tree = tree_of(facts.contents[path], path)
    runtimes = [key for key, _ in _runtimes(tree, toolkit)]
    runtimes += _beside(path, runtimes)
    ours = {("version",), *((*key[:-2], ENGINES[engine.name].default_key) for key in runtimes)}
    return any(
        key not in ours and not any(key[: len(runtime)] == runtime for runtime in runtimes)
        for key, _ in leaves(tree)
    )


def left_theirs(facts: Facts, options: Options) -> Part:
    """Return what an undo leaves to another installer whose toolkit stands in the place of ours."""
    notes = []
    for path in sorted(facts.contents) if facts.toolkit.theirs else ():
        with suppress(InstallerError):  # what no engine could read makes it start nothing
            theirs = _runtimes(tree_of(facts.contents[path], path), options.layout.toolkit)
            if names := ", ".join(sorted({key[-1] for key, _ in theirs})):
                notes.append(
                    f"left {names} in {path}: another installer has put its toolkit in the place of ours, "
                    "and they start that; toolkit-installer uninstall --adopt removes both"
                )
    notes += [
        f"the default runtime in {path} was {name} before ours; what it is now is left: set it, if wanted"
        for path, name in sorted(facts.toolkit.defaults.items())
    ]
    return Part(ID, notes=tuple(notes))


def left_alone(facts: Facts, options: Options) -> Iterator[str]:
    """Yield the runtimes that start NVIDIA's binaries elsewhere, which are somebody else's."""
    for path in (path for engine in facts.engines for path in engine.files):
        if facts.contents[path] is not None:
            tree = tree_of(facts.contents[path], path)
            theirs = dict(_runtimes(tree, options.layout.toolkit))
            for name, binary in _packages(tree, theirs):
                yield f"{name} in {path}: it starts {binary}"


def _drop_ins(engine: EngineState, facts: Facts, toolkit: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the drop-ins that are NVIDIA's as a whole; nvidia-ctk writes others to the same path."""
    for path in engine.files:
        file = facts.contents[path]
        if file is not None and path.stem == DROP_IN and any(_runtimes(tree_of(file, path), toolkit)):
            yield path


def _packages(tree: Tree, theirs: Mapping[Key, PurePosixPath]) -> Iterator[tuple[str, str]]:
    """Yield the runtimes that start NVIDIA's binaries elsewhere, as nvidia-ctk sets them up for packages."""
    for key, value in leaves(tree):
        if is_ours(value) and RUNTIMES in key and not any(key[: len(their)] == their for their in theirs):
            yield key[key.index(RUNTIMES) + 1], str(value)


def _whole(name: str, path: PurePosixPath, facts: Facts) -> ConfigRow:
    file = facts.contents[path]
    return ConfigRow(name, path, None, None, (file.digest,) if file else (), ())


def _is_hook(facts: Facts, path: PurePosixPath, toolkit: PurePosixPath) -> bool:
    """Tell whether an OCI hook is a program of the toolkit: without that no container would start."""
    try:
        said = value_at(tree_of(facts.contents[path], path), ("hook", "path"))
    except InstallerError:  # nobody could make anything of it
        return False
    return isinstance(said, str) and PurePosixPath(said).is_relative_to(toolkit)


def _runtimes(tree: Tree, toolkit: PurePosixPath) -> Iterator[tuple[Key, PurePosixPath]]:
    """Yield the key of each runtime that starts the toolkit, and what it starts."""
    for key, value in leaves(tree):
        binary = PurePosixPath(value) if isinstance(value, str) else PurePosixPath()
        if binary.parent == toolkit and binary.name in OUR_BINARIES and RUNTIMES in key[:-1]:
            place = len(key) - 1 - key[::-1].index(RUNTIMES)
            if place + 1 < len(key) - 1:
                yield key[: place + 2], binary


def _edits(engine: EngineState, tree: Tree, theirs: tuple[Key, ...]) -> Iterator[Edit]:
    """Yield what NVIDIA's tool did to a file that is not its own, as far as it can be told."""
    for parent in {key[:depth] for key in theirs for depth in range(1, len(key))}:
        yield Edit(parent, None, "{}")
    for key in theirs:
        default = (*key[:-2], ENGINES[engine.name].default_key)
        if value_at(tree, default) == key[-1]:
            yield Edit(default, None, json.dumps(key[-1]))
        runtime = value_at(tree, key)
        yield Edit(key, None, "{}")
        for below, value in leaves(runtime) if isinstance(runtime, dict) else ():
            for depth in range(1, len(below)):
                yield Edit((*key, *below[:depth]), None, "{}")
            yield Edit((*key, *below), None, json.dumps(value, ensure_ascii=False))


def _own_imports(engine: EngineState, facts: Facts, toolkit: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield what we import for each drop-in that names the toolkit."""
    for path in engine.files:
        if path != engine.config and any(_runtimes(tree_of(facts.contents[path], path), toolkit)):
            yield own_import(path)


def _imports(
    engine: EngineState, tree: Tree, wholes: Collection[PurePosixPath], own: Collection[PurePosixPath]
) -> Iterator[Edit]:
    """Yield the imports that are ``own``, or that take nothing but ``wholes``."""
    imports = tree.get("imports")
    if ENGINES[engine.name].drop_ins.kind is not DropInKind.IMPORTED or not isinstance(imports, list):
        return
    for pattern in (each for each in imports if isinstance(each, str)):
        path = PurePosixPath(pattern)
        if path in own or _only_theirs(engine, path, wholes):
            yield Edit(("imports",), None, json.dumps(pattern), member=True)


def _only_theirs(engine: EngineState, pattern: PurePosixPath, wholes: Collection[PurePosixPath]) -> bool:
    """Tell whether an import is NVIDIA's and takes no file but NVIDIA's drop-in."""
    taken = [path for path in engine.files if path.parent == pattern.parent and path != engine.config]
    return pattern.name in {MANY, OURS} and bool(taken) and all(path in wholes for path in taken)
