"""Find what names a program of the toolkit: texts that engines read, flags, and running engines.

An undo removes the toolkit only if nothing names it any more.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import PurePosixPath
from posixpath import normpath

from msgspec.structs import replace

from installer.config_text import Key, Tree, flatten, leaves
from installer.engines import ENGINES
from installer.engines.config_keys import RUNTIMES, runtime_of
from installer.engines.config_texts import tree_of
from installer.errors import UNINSTALL_AGAIN, InstallerError
from installer.model.effective import BINARY_NAMES, OUR_BINARIES
from installer.model.engine import EngineState
from installer.model.facts import ConfigRow, Facts, Reference
from installer.model.files import VERSIONS, File, Layout
from installer.model.options import Options
from installer.model.steps import Part, PartId, Reload, WriteConfig


def find_references(facts: Facts, parts: Iterable[Part], options: Options) -> Iterator[InstallerError]:
    """Report each remaining reference to the toolkit after the steps of ``parts``."""
    for reference in _list_remaining(facts, tuple(parts), options.layout):
        leads = ""
        if reference.program in facts.links:
            leads = f", which leads to {facts.links[reference.program]}"
        problem = f"remove the toolkit ({reference.how} {reference.program}{leads})"
        yield InstallerError(
            problem, remedy=f"{reference.remedy}, then {UNINSTALL_AGAIN}", code="toolkit-needed"
        )


def _list_remaining(facts: Facts, parts: Sequence[Part], layout: Layout) -> list[Reference]:
    """List the remaining references: of texts, of engines, and of the rest of the node."""
    texts = _list_texts_after(facts, parts)
    reloaded = set()
    for step in chain.from_iterable(part.steps for part in parts):
        if isinstance(step, Reload):
            reloaded.add(step.engine)
    # Configs that keep our runtimes, and files that belong to no engine, are no references.
    skipped = {row.path for row in facts.record.configs if row.engine not in ENGINES}
    for part in parts:
        if part.rows.engines:
            skipped.update(row.path for row in part.in_progress)

    found: list[Reference] = []
    for path in sorted(texts.keys() - skipped):
        first = next(_find_new(path, texts[path], facts, layout), None)
        if first is not None:
            found.append(first)
    for reference in _find_served(facts, reloaded):
        if is_removed(facts, reference.program, layout):
            found.append(reference)
    # Of several references by one place the first is reported.
    by_place: dict[str, Reference] = {}
    for each in facts.references:
        if is_removed(facts, each.program, layout):
            by_place.setdefault(each.how, each)
    found += by_place.values()
    return found


def find_named_in_toolkit(facts: Facts, parts: Sequence[Part]) -> dict[PurePosixPath, list[Reference]]:
    """Find the files below the toolkit's directory that configs, flags, running engines or others name.

    The configs count as the steps of ``parts`` leave them.

    Returns:
        The references to each file, by its path below the toolkit's directory.
    """
    texts = _list_texts_after(facts, parts)
    references: list[Reference] = []
    for path in sorted(texts):
        references += _list_references(texts[path], path)
    references += _find_served(facts, {engine.name for engine in facts.engines})
    references += facts.references
    named: dict[PurePosixPath, list[Reference]] = {}
    for reference in references:
        below = facts.in_toolkit.get(reference.program)
        if below is not None:
            named.setdefault(below, []).append(reference)
    # An engine goes on with what it serves, though its config may have changed since. So do containers.
    # A config may be read only through a pattern of imports.
    read = [Reference("an engine reads", str(path)) for path in sorted(texts)]
    for reference in (*_find_served(facts, ()), *facts.users, *read):
        below = facts.in_toolkit.get(reference.program)
        if below is not None and below not in named:
            named[below] = [reference]
    return named


def _list_texts_after(facts: Facts, parts: Iterable[Part]) -> dict[PurePosixPath, File | None]:
    """Return the read configs as the steps of ``parts`` leave them."""
    texts = dict(facts.contents)
    for step in chain.from_iterable(part.steps for part in parts):
        if isinstance(step, WriteConfig):
            texts[step.path] = step.after
    return texts


def find_last_references(facts: Facts, options: Options) -> Iterator[InstallerError]:
    """Report each remaining reference to the toolkit once every engine is without us.

    An engine with our runtimes in force counts, too.
    """
    yield from find_references(facts, (), options)
    for engine in facts.engines:
        row = facts.record.engine(engine.name)
        # An engine that looks for the toolkit by itself will not find it at its next start.
        if row is None or engine.kind.built_in_runtime:
            continue
        named_before_us: set[str] = set()
        for config in facts.record.configs:
            if config.engine == engine.name:
                named_before_us.update(config.named or ())
        for name, program in engine.served.binaries.items():
            if name not in row.runtimes or program in named_before_us:
                continue
            if is_removed(facts, program, options.layout):
                problem = f"remove the toolkit ({engine.title} serves {name}, which starts {program})"
                remedy = f"restart {engine.title}, then {UNINSTALL_AGAIN}"
                yield InstallerError(problem, remedy=remedy, code="toolkit-needed")


def leads_into(facts: Facts, value: str, layout: Layout) -> bool:
    """Tell whether a path leads into the toolkit: directly, through ``toolkit`` or through another link."""
    return _is_below(facts, value, layout, layout.toolkit.name, layout.home.name)


def is_removed(facts: Facts, value: str, layout: Layout) -> bool:
    """Tell whether an undo removes the program at a path."""
    # A program stays if it returns with the directory that stood at our path before our toolkit.
    if value in facts.returning:
        return False
    # What is at the toolkit's name stays if it is not ours: another installer's toolkit, or an owner's
    # directory after the roll-back of a first install.
    nothing_of_ours = facts.record.toolkit is None and not facts.toolkit.link.startswith(VERSIONS)
    if facts.toolkit.theirs or nothing_of_ours:
        return _is_below(facts, value, layout, layout.home.name)
    return _is_below(facts, value, layout, layout.toolkit.name, layout.home.name)


def _is_below(facts: Facts, value: str, layout: Layout, *names: str) -> bool:
    """Tell whether a path or the target of a link is below any of the ``names`` in the install-dir."""
    real_install_dir = facts.links.get(str(layout.install_dir), layout.install_dir)
    places = set()
    for directory in (layout.install_dir, real_install_dir):
        for name in names:
            places.add(directory / name)
    paths = []
    if value.startswith("/"):  # a mere word is no path
        paths.append(PurePosixPath(normpath(f"/{value.lstrip('/')}")))
    if value in facts.links:
        paths.append(facts.links[value])
    return any(not places.isdisjoint(path.parents) for path in paths)


def remember_named(rows: Iterable[ConfigRow], facts: Facts, layout: Layout) -> Iterator[ConfigRow]:
    """Add to each row the programs of the toolkit in the file before our first install."""
    for row in rows:
        former = facts.record.config(row.path)
        if former is not None:
            yield replace(row, named=former.named)
            continue
        if facts.record.engines:
            # Our toolkit is installed already, if only for another engine or by an undo that could not
            # finish: the file may name its programs since then.
            yield replace(row, named=())
            continue
        named = []
        for program in list_programs(facts.contents.get(row.path), row.path):
            if leads_into(facts, program, layout):
                named.append(program)
        yield replace(row, named=tuple(named))


def _find_new(path: PurePosixPath, file: File | None, facts: Facts, layout: Layout) -> Iterator[Reference]:
    """Yield the programs of the toolkit that a file names more often than before our first install."""
    row = facts.record.config(path)
    known = row.named if row is not None else None
    if known is None:  # the text alone tells
        known = tuple(list_programs(facts.originals.get(path), path))
    programs = [each for each in list_programs(file, path) if is_removed(facts, each, layout)]
    # A second runtime with the same program is a second reference.
    for program in Counter(programs) - Counter(known):
        yield Reference(f"{path} names", program)


def _find_served(facts: Facts, reloaded: Collection[str]) -> Iterator[Reference]:
    """Yield the programs that engines start by a flag, or by the runtimes of others in force.

    A reloaded engine serves the runtimes of the files, which are judged as texts.
    """
    ours: set[tuple[str, str]] = set()
    for row in facts.record.engines:
        for name in row.runtimes:
            ours.add((row.name, name))
    for engine in facts.engines:
        now = engine.flags.runtimes
        later = engine.next_flags.runtimes
        title = engine.title
        for name, binary in {**later, **now}.items():
            start = "was started" if name in now else "will be started by its unit"
            how = f"{title} {start} with a flag for {name}, which starts"
            yield Reference(how, binary, f"start {title} without that flag")
        for word in dict.fromkeys(list_start_paths(engine)):
            if word in facts.in_toolkit and word not in {*now.values(), *later.values()}:
                yield Reference(f"the command line of {title} names", word, f"start {title} without that")
        if engine.serving is None or engine.name in reloaded:
            continue
        for name, binary in engine.serving.binaries.items():
            if (engine.name, name) not in ours:
                remedy = f"take it out of the config of {title}, restart that"
                yield Reference(f"{title} serves {name}, which starts", binary, remedy)


def list_start_paths(engine: EngineState) -> Iterator[str]:
    """Yield the paths in the command lines of an engine, now and at its next start; also behind "="."""
    for start in (engine.started, engine.next_start):
        if start is None:
            continue
        for word in (start.program, *start.words):
            for path in (word, word.partition("=")[2]):
                if path.startswith("/"):
                    yield path


def _list_references(file: File | None, path: PurePosixPath) -> Iterator[Reference]:
    """Yield the possible programs in a file, each with the name of the runtime that starts it."""
    names: dict[str, str] = {}
    with suppress(InstallerError):
        for key, value in leaves(tree_of(file, path)):
            for word in _list_words(value):
                names.setdefault(word, runtime_of(key))
    for program in dict.fromkeys(list_programs(file, path)):
        name = names.get(program)
        how = f"the runtime {name} in {path} starts" if name else f"{path} names"
        yield Reference(how, program)


def list_programs(file: File | None, path: PurePosixPath) -> Iterator[str]:
    """Yield the possible programs in a file: any path, and a word as the value of a runtime's program."""
    with suppress(InstallerError):
        tree = tree_of(file, path)
        for key, value in flatten(tree):
            for word in _list_words(value):
                if word.startswith("/") or (word and word == value and key[-1] in BINARY_NAMES):
                    yield word
        # CRI-O looks for a program by the name of its runtime if the config names no program.
        for engine in ENGINES.values():
            for name, program in engine.read_runtimes(tree).items():
                if not program and "/" not in name:
                    yield name


def _list_words(value: object) -> Iterator[str]:
    """Yield the strings in a value; strings of a list also without the text up to an equals sign."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            for word in _list_words(each):
                _, _, argument = word.partition("=")
                yield word
                yield argument
    elif isinstance(value, dict):
        for each in value.values():
            yield from _list_words(each)


def find_taken_over(facts: Facts, options: Options) -> Part:
    """Note the runtimes left to another installer with a toolkit at our path."""
    notes: list[str] = []
    if not facts.toolkit.theirs:
        return Part(PartId.ADOPTED)
    for path in sorted(facts.contents):
        with suppress(InstallerError):  # no engine can read this config, so it starts nothing
            runtimes = list_runtimes(tree_of(facts.contents[path], path), options.layout.toolkit)
            runtime_names = {key[-1] for key, _ in runtimes}
            names = ", ".join(sorted(runtime_names))
            if names:
                notes.append(
                    f"left {names} in {path}: another installer has put its toolkit in the place of ours, "
                    "and they start that; toolkit-installer uninstall --adopt removes both"
                )
    return Part(PartId.ADOPTED, notes=tuple(notes))


def list_runtimes(tree: Tree, toolkit: PurePosixPath) -> Iterator[tuple[Key, PurePosixPath]]:
    """Yield the key and the program of each runtime in the toolkit."""
    for key, value in leaves(tree):
        if not isinstance(value, str):
            continue
        binary = PurePosixPath(value)
        if binary.parent == toolkit and binary.name in OUR_BINARIES and RUNTIMES in key[:-1]:
            last_runtimes = len(key) - 1 - key[::-1].index(RUNTIMES)
            if last_runtimes + 1 < len(key) - 1:
                yield key[: last_runtimes + 2], binary
