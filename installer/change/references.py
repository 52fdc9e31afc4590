"""What names a program of the toolkit: the texts that engines read, flags, and what running engines serve."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import PurePosixPath
from posixpath import normpath

from msgspec.structs import replace

from installer.config_text import Key, Tree, flatten, leaves
from installer.engines import ENGINES
from installer.engines.config_edits import RUNTIMES, tree_of
from installer.errors import InstallerError
from installer.model.engine_spec import BINARY_NAMES, OUR_BINARIES
from installer.model.facts import ConfigRow, Facts, Reference
from installer.model.files import File, Layout
from installer.model.options import Options
from installer.model.steps import TRY_AGAIN, Part, Reload, WriteConfig


def find_references(facts: Facts, parts: Iterable[Part], options: Options) -> Iterator[InstallerError]:
    """Yield what else starts a program of the toolkit, which outlives every reference to it."""
    layout = options.layout
    steps = [step for part in parts for step in part.steps]
    texts = dict(facts.contents) | {step.path: step.after for step in steps if isinstance(step, WriteConfig)}
    left = {row.path for row in facts.held.configs if row.engine not in ENGINES}
    left |= {row.path for part in parts if part.rows.engines for row in part.in_progress}
    named = (_find_new(path, texts[path], facts, layout) for path in sorted(texts.keys() - left))
    reloaded = {step.engine for step in steps if isinstance(step, Reload)}
    others = [each for each in facts.references if is_removed(facts, each.program, layout)]
    found = (
        *(first for each in named for first in islice(each, 1)),
        *(each for each in _find_served(facts, reloaded) if is_removed(facts, each.program, layout)),
        *reversed({each.how: each for each in reversed(others)}.values()),
    )
    for how, program, remedy in ((each.how, each.program, each.remedy) for each in found):
        leads = f", which leads to {facts.links[program]}" if program in facts.links else ""
        problem = f"remove the toolkit ({how} {program}{leads})"
        yield InstallerError(problem, remedy=f"{remedy}, then {TRY_AGAIN}", code="toolkit-needed")


def find_last_references(facts: Facts, options: Options) -> Iterator[InstallerError]:
    """Yield what starts a program of the toolkit once every engine is without us: their own runtimes, too."""
    yield from find_references(facts, (), options)
    for engine in facts.engines:
        row = facts.held.engine(engine.name)
        if row is None or engine.spec.finds:  # which finds no toolkit at its next start
            continue
        before_us = {
            program
            for config in facts.held.configs
            if config.engine == engine.name
            for program in config.named or ()
        }
        for name, program in engine.served.binaries.items():
            if (
                name in row.runtimes
                and program not in before_us
                and is_removed(facts, program, options.layout)
            ):
                problem = f"remove the toolkit ({engine.title} serves {name}, which starts {program})"
                remedy = f"restart {engine.title}, then {TRY_AGAIN}"
                yield InstallerError(problem, remedy=remedy, code="toolkit-needed")


def leads_into(facts: Facts, value: str, layout: Layout) -> bool:
    """Tell whether a path is one of the toolkit's: by its name, behind ``toolkit``, by another link."""
    return _is_below(facts, value, layout, layout.toolkit.name, layout.home.name)


def is_removed(facts: Facts, value: str, layout: Layout) -> bool:
    """Tell whether an undo takes the program at a path away: not that of another toolkit in our place."""
    places = (layout.home.name,) if facts.toolkit.theirs else (layout.toolkit.name, layout.home.name)
    # Nor one that comes back with the directory that stood there before ours.
    return value not in facts.returning and _is_below(facts, value, layout, *places)


def _is_below(facts: Facts, value: str, layout: Layout, *names: str) -> bool:
    directories = (layout.install_dir, facts.links.get(str(layout.install_dir), layout.install_dir))
    places = [directory / name for directory in directories for name in names]
    # Without what only spells it otherwise; a word is no path.
    spelled = PurePosixPath(normpath(f"/{value.lstrip('/')}")) if value.startswith("/") else None
    return any(
        place in path.parents for path in (spelled, facts.links.get(value)) if path for place in places
    )


def remember_named(rows: Iterable[ConfigRow], facts: Facts, layout: Layout) -> Iterator[ConfigRow]:
    """Yield the rows, those of a first install with what their files name of the toolkit by then."""
    for row in rows:
        held = facts.held.config(row.path)
        programs = list_programs(facts.contents.get(row.path), row.path)
        named = held.named if held else tuple(each for each in programs if leads_into(facts, each, layout))
        yield replace(row, named=named)


def _find_new(path: PurePosixPath, file: File | None, facts: Facts, layout: Layout) -> Iterator[Reference]:
    """Yield the programs of the toolkit that a file names more often than before our first install."""
    row = facts.held.config(path)
    known = row.named if row is not None else None
    if known is None:  # a ledger of 0.1.0 tells the text alone
        known = tuple(list_programs(facts.originals.get(path), path))
    programs = (each for each in list_programs(file, path) if is_removed(facts, each, layout))
    # Another runtime that starts the same program is one reference more.
    for program in Counter(programs) - Counter(known):
        yield Reference(f"{path} names", program)


def _find_served(facts: Facts, reloaded: Collection[str]) -> Iterator[Reference]:
    """Yield which programs of others engines start: by a flag, or as those serve that are not reloaded."""
    ours = {(row.name, name) for row in facts.held.engines for name in row.runtimes}
    for engine in facts.engines:
        now, later, title = engine.flags.runtimes, engine.next_flags.runtimes, engine.title
        for name, binary in {**later, **now}.items():
            start = "was started" if name in now else "will be started by its unit"
            how = f"{title} {start} with a flag for {name}, which starts"
            yield Reference(how, binary, f"start {title} without that flag")
        binaries = engine.serving.binaries if engine.serving and engine.name not in reloaded else {}
        for name, binary in binaries.items():
            if (engine.name, name) not in ours:
                remedy = f"take it out of the config of {title}, restart that"
                yield Reference(f"{title} serves {name}, which starts", binary, remedy)


def list_programs(file: File | None, path: PurePosixPath) -> Iterator[str]:
    """Yield what a file may mean a program by: any path, and a word where a runtime's program stands."""
    with suppress(InstallerError):
        tree = tree_of(file, path)
        for key, value in flatten(tree):
            for word in _list_words(value):
                if word.startswith("/") or (word and word == value and key[-1] in BINARY_NAMES):
                    yield word
        # CRI-O looks for the program of a runtime without one by the name of that.
        for engine in ENGINES.values():
            runtimes = engine.read_runtimes(tree) if engine.read_runtimes else {}
            yield from (name for name, program in runtimes.items() if not program and "/" not in name)


def _list_words(value: object) -> Iterator[str]:
    """Yield a string, or those in a list: each as a whole, and what follows its equals sign."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for word in (word for each in value for word in _list_words(each)):
            yield from (word, *word.partition("=")[2:])
    elif isinstance(value, dict):
        yield from (word for each in value.values() for word in _list_words(each))


def find_taken_over(facts: Facts, options: Options) -> Part:
    """Return what an undo leaves to another installer whose toolkit stands in the place of ours."""
    notes = []
    for path in sorted(facts.contents) if facts.toolkit.theirs else ():
        with suppress(InstallerError):  # what no engine could read makes it start nothing
            runtimes = list_runtimes(tree_of(facts.contents[path], path), options.layout.toolkit)
            if names := ", ".join(sorted({key[-1] for key, _ in runtimes})):
                notes.append(
                    f"left {names} in {path}: another installer has put its toolkit in the place of ours, "
                    "and they start that; toolkit-installer uninstall --adopt removes both"
                )
    return Part("adopted", notes=tuple(notes))


def list_runtimes(tree: Tree, toolkit: PurePosixPath) -> Iterator[tuple[Key, PurePosixPath]]:
    """Yield the key of each runtime that starts the toolkit, and what it starts."""
    for key, value in leaves(tree):
        binary = PurePosixPath(value) if isinstance(value, str) else PurePosixPath()
        if binary.parent == toolkit and binary.name in OUR_BINARIES and RUNTIMES in key[:-1]:
            place = len(key) - 1 - key[::-1].index(RUNTIMES)
            if place + 1 < len(key) - 1:
                yield key[: place + 2], binary
