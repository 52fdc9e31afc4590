"""What NVIDIA's own installer left on a node, as rows of a ledger: so an undo removes it like our own."""

import json
from collections.abc import Iterator
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
from installer.model.steps import Part, sum_rows
from installer.payload.plan import ADOPTED

ID: Final = "adopted"
DROP_IN: Final = "99-nvidia"  # the stem of NVIDIA's drop-ins; they hold a copy of the engine's whole section
MANY: Final = "*.toml"  # what NVIDIA's tool adds to containerd's imports
OURS: Final = f"{DROP_IN}*.toml"  # and what we add


def find_leftovers(facts: Facts, options: Options, *, ours: bool = False) -> Part:
    """Return rows for what is NVIDIA's: runtimes that start its toolkit, drop-ins and imports, its directory.

    They are what an undo takes back, with a note for each.

    If it is ``ours``, of a ledger that is lost, only what we write ourselves goes: keys, and our own import.
    """
    parts = [
        _Leftovers(engine, facts, options.layout.toolkit, ours=ours).as_part() for engine in facts.engines
    ]
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

    def __init__(self, engine: EngineState, facts: Facts, toolkit: PurePosixPath, *, ours: bool) -> None:
        self.engine, self.facts, self.toolkit, self.ours = engine, facts, toolkit, ours
        there = (path for path in engine.files if facts.contents[path] is not None)
        self.trees = {path: tree_of(facts.contents[path], path) for path in there}
        self.runtimes = {path: dict(_list_runtimes(tree, toolkit)) for path, tree in self.trees.items()}
        # NVIDIA's as a whole; nvidia-ctk writes others to the same path.
        self.drop_ins = {path for path, found in self.runtimes.items() if found and path.stem == DROP_IN}
        if ours and facts.toolkit.kind is Kind.ABSENT:  # not even our link is left to tell whose they are
            usual = ENGINES[engine.name].drop_ins.usual
            for path in [each for each in self.drop_ins if each != (usual or each) or self.holds_more(each)]:
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
            elif edits := (*self.edits(tree, (*started, *self.beside(path))), *self.imports(tree)):
                syntax = syntax_of(path, text_of(self.facts.contents[path], path), engine.name)
                configs.append(ConfigRow(engine.name, path, syntax, None, (), edits))
                names = ", ".join(sorted(key[-1] for key in started)) or "an import"
                found.append(f"{names} in {path}")
        hooks = tuple(path for path in engine.hooks if _is_hook(self.facts, path, self.toolkit))
        configs += [self.whole(path) for path in hooks]
        found += [f"the hook {path}" for path in hooks]
        row = EngineRow(engine.name, engine.socket, engine.unit, tuple(runtimes.items()))
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
        default = ENGINES[self.engine.name].default_key
        ours = {("version",), *((*key[:-2], default) for key in runtimes)}
        return any(
            key not in ours and not any(key[: len(runtime)] == runtime for runtime in runtimes)
            for key, _ in leaves(self.trees[path])
        )

    def edits(self, tree: Tree, keys: tuple[Key, ...]) -> Iterator[Edit]:
        """Yield what NVIDIA's tool did to a file that is not its own, as far as it can be told."""
        for parent in {key[:depth] for key in keys for depth in range(1, len(key))}:
            yield Edit(parent, None, "{}")
        for key in keys:
            default = (*key[:-2], ENGINES[self.engine.name].default_key)
            if value_at(tree, default) == key[-1]:
                yield Edit(default, None, json.dumps(key[-1]))
            runtime = value_at(tree, key)
            yield Edit(key, None, "{}")
            for below, value in leaves(runtime) if isinstance(runtime, dict) else ():
                for depth in range(1, len(below)):
                    yield Edit((*key, *below[:depth]), None, "{}")
                yield Edit((*key, *below), None, json.dumps(value, ensure_ascii=False))

    def imports(self, tree: Tree) -> Iterator[Edit]:
        """Yield the imports that are our own for a drop-in, or that take nothing but NVIDIA's drop-ins."""
        imports, kind = tree.get("imports"), ENGINES[self.engine.name].drop_ins.kind
        if kind is not DropInKind.IMPORTED or not isinstance(imports, list):
            return
        config = self.engine.config
        own = {own_import(path) for path in self.trees if self.runtimes[path] and path != config}
        for pattern in (each for each in imports if isinstance(each, str)):
            place = PurePosixPath(pattern)
            taken = {path for path in self.engine.files if path.parent == place.parent} - {config}
            of_drop_ins = place.name in {MANY, OURS} and taken and taken <= self.drop_ins
            if place in own if self.ours else of_drop_ins:
                yield Edit(("imports",), None, json.dumps(pattern), member=True)


def find_taken_over(facts: Facts, options: Options) -> Part:
    """Return what an undo leaves to another installer whose toolkit stands in the place of ours."""
    notes = []
    for path in sorted(facts.contents) if facts.toolkit.theirs else ():
        with suppress(InstallerError):  # what no engine could read makes it start nothing
            runtimes = _list_runtimes(tree_of(facts.contents[path], path), options.layout.toolkit)
            if names := ", ".join(sorted({key[-1] for key, _ in runtimes})):
                notes.append(
                    f"left {names} in {path}: another installer has put its toolkit in the place of ours, "
                    "and they start that; toolkit-installer uninstall --adopt removes both"
                )
    notes += [
        f"the default runtime in {path} was {name} before ours; what it is now is left: set it, if wanted"
        for path, name in sorted(facts.toolkit.defaults.items())
    ]
    return Part(ID, notes=tuple(notes))


def find_packages(facts: Facts, options: Options) -> Iterator[str]:
    """Yield the runtimes that start NVIDIA's binaries elsewhere, as nvidia-ctk sets them up for packages."""
    for path in (path for engine in facts.engines for path in engine.files):
        tree = tree_of(facts.contents[path], path)
        known = dict(_list_runtimes(tree, options.layout.toolkit))
        for key, value in leaves(tree):
            if is_ours(value) and RUNTIMES in key and not any(key[: len(each)] == each for each in known):
                yield f"{key[key.index(RUNTIMES) + 1]} in {path}: it starts {value}"


def _is_hook(facts: Facts, path: PurePosixPath, toolkit: PurePosixPath) -> bool:
    """Tell whether an OCI hook is a program of the toolkit: without that no container would start."""
    try:
        program = value_at(tree_of(facts.contents[path], path), ("hook", "path"))
    except InstallerError:  # no engine could read it
        return False
    return isinstance(program, str) and PurePosixPath(program).is_relative_to(toolkit)


def _list_runtimes(tree: Tree, toolkit: PurePosixPath) -> Iterator[tuple[Key, PurePosixPath]]:
    """Yield the key of each runtime that starts the toolkit, and what it starts."""
    for key, value in leaves(tree):
        binary = PurePosixPath(value) if isinstance(value, str) else PurePosixPath()
        if binary.parent == toolkit and binary.name in OUR_BINARIES and RUNTIMES in key[:-1]:
            place = len(key) - 1 - key[::-1].index(RUNTIMES)
            if place + 1 < len(key) - 1:
                yield key[: place + 2], binary
