"""What names a program of the toolkit: the texts that engines read, flags, and what running engines serve."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.config_edits import tree_of
from installer.errors import InstallerError
from installer.model.effective import BINARY_NAMES, flatten
from installer.model.facts import Facts
from installer.model.files import File
from installer.model.options import Options
from installer.model.paths import Layout
from installer.model.record import ConfigRow
from installer.model.steps import TRY_AGAIN, Part, Reload, WriteConfig


def references(facts: Facts, parts: Iterable[Part], options: Options) -> Iterator[InstallerError]:
    """Yield what else starts a program of the toolkit, which outlives every reference to it.

    A file may name what it named before us.
    """
    layout = options.layout
    steps = [step for part in parts for step in part.steps]
    texts = dict(facts.contents) | {step.path: step.after for step in steps if isinstance(step, WriteConfig)}
    left = {row.path for row in facts.held.configs if row.engine not in ENGINES}
    left |= {row.path for part in parts if part.rows.engines for row in part.in_progress}
    for path in sorted(texts.keys() - left):
        named = next(_find_new(path, texts[path], facts, layout), None)
        if named is not None:
            problem = f"remove the toolkit ({path} names {_explain(named, facts)})"
            yield InstallerError(
                problem, remedy=f"correct that file, then {TRY_AGAIN}", code="toolkit-needed"
            )
    yield from _find_served(facts, {step.engine for step in steps if isinstance(step, Reload)}, layout)
    others = [each for each in facts.references if facts.goes(each.program, layout)]
    for how, each in reversed({each.how: each for each in reversed(others)}.items()):
        yield InstallerError(
            f"remove the toolkit ({how} {_explain(each.program, facts)})",
            remedy=f"{each.remedy}, then {TRY_AGAIN}",
            code="toolkit-needed",
        )


def with_named(rows: Iterable[ConfigRow], facts: Facts, layout: Layout) -> Iterator[ConfigRow]:
    """Yield the rows, those of a first install with what their files name of the toolkit by then."""
    for row in rows:
        held = facts.held.config(row.path)
        programs = programs_named(facts.contents.get(row.path), row.path)
        named = held.named if held else tuple(each for each in programs if facts.leads_into(each, layout))
        yield replace(row, named=named)


def _find_new(path: PurePosixPath, file: File | None, facts: Facts, layout: Layout) -> Iterator[str]:
    """Yield the programs of the toolkit that a file names more often than before our first install.

    Counted, for another runtime that starts the same program is one reference more.
    """
    row = facts.held.config(path)
    if row is None or row.named is None:  # a ledger of before tells the text alone
        before = Counter(_list_leaving(facts.originals.get(path), path, facts, layout))
    else:
        before = Counter(row.named)
    yield from Counter(_list_leaving(file, path, facts, layout)) - before


def _find_served(facts: Facts, reloaded: Collection[str], layout: Layout) -> Iterator[InstallerError]:
    """Yield which runtimes of others start the toolkit: by a flag, or in engines that are not reloaded."""
    ours = {(row.name, name) for row in facts.held.engines for name, _ in row.runtimes}
    for engine in facts.engines:
        now, later = engine.flags.runtimes, engine.next_flags.runtimes
        for name, binary in {**later, **now}.items():
            if facts.goes(binary, layout):
                start = "was started" if name in now else "will be started by its unit"
                flag = f"{engine.title} {start} with a flag for {name}"
                yield InstallerError(
                    f"remove the toolkit ({flag}, which starts {_explain(binary, facts)})",
                    remedy=f"start {engine.title} without that flag, then {TRY_AGAIN}",
                    code="toolkit-needed",
                )
        binaries = engine.serving.binaries if engine.serving and engine.name not in reloaded else {}
        for name, binary in binaries.items():
            if (engine.name, name) not in ours and facts.goes(binary, layout):
                started = _explain(binary, facts)
                yield InstallerError(
                    f"remove the toolkit ({engine.title} serves {name}, which starts {started})",
                    remedy=f"take it out of the config of {engine.title}, restart that, then {TRY_AGAIN}",
                    code="toolkit-needed",
                )


def _list_leaving(file: File | None, path: PurePosixPath, facts: Facts, layout: Layout) -> Iterator[str]:
    """Yield what a file names of the toolkit that goes; one that no engine could read names nothing."""
    yield from (value for value in programs_named(file, path) if facts.goes(value, layout))


def programs_named(file: File | None, path: PurePosixPath) -> Iterator[str]:
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


def _explain(value: str, facts: Facts) -> str:
    return f"{value}, which leads to {facts.links[value]}" if value in facts.links else value
