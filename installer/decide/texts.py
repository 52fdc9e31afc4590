"""The texts of an engine's configs, and whom to ask what they come to."""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TypeAlias

from installer.decide.configs import syntax_of, text_of, without_us
from installer.decide.edits import parse
from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.model import ConfigFiles
from installer.decide.facts import EngineFacts, Facts
from installer.decide.inode import File
from installer.decide.rows import ConfigRow

Texts: TypeAlias = Mapping[PurePosixPath, File | None]
# What an engine would have in force with these texts, and without any other.
Ask: TypeAlias = Callable[[EngineFacts, Texts], Effect]


def texts_alone(engine: EngineFacts, texts: Texts) -> Effect:
    """Return what texts have in force as far as they tell by themselves: an ``Ask`` that asks nobody."""
    return ENGINES[engine.name].effect(config_files(engine, texts))


def config_files(engine: EngineFacts, texts: Texts) -> ConfigFiles:
    """Return texts as the engine's functions take them.

    Raises:
        InstallerError: one of them is not valid.
    """
    order = dict.fromkeys((*engine.files, *sorted(texts)))
    files = {path: file for path in order if (file := texts.get(path)) is not None}
    said = {path: text_of(file, path) for path, file in files.items()}
    trees = {
        path: parse(text, syntax_of(path, text, engine.name), name=str(path)) for path, text in said.items()
    }
    return ConfigFiles(
        engine.config,
        engine.drop_in,
        trees,
        engine.version,
        engine.hook,
        None,
        engine.serving,
        files,
        engine.flags,
        engine.unreadable,
        engine.dormant,
        engine.rendered,
        ENGINES[engine.name].title,
    )


def files_without_us(engine: EngineFacts, facts: Facts) -> dict[PurePosixPath, File | None]:
    """Return each config of an engine as it would be without us.

    Raises:
        InstallerError: somebody else wrote since, and the text is not valid any more.
    """
    held = (row.path for row in configs_of(engine, facts))
    return {path: without_us(path, facts).file for path in dict.fromkeys((*engine.files, *held))}


def configs_of(engine: EngineFacts, facts: Facts) -> Iterator[ConfigRow]:
    """Yield the rows of an engine but for copies of its root file: a revert may need what stands there."""
    for row in facts.held.configs:
        if row.engine == engine.name and not ENGINES[engine.name].is_copy(row.path):
            yield row


def present(engine: EngineFacts, facts: Facts) -> Texts:
    """Return the configs of an engine as they lie there."""
    return {path: facts.contents.get(path) for path in engine.files}


def digest_of(texts: Texts) -> str:
    """Return the digest of texts and of their places: whether somebody has written since."""
    there = sorted((str(path), file.digest) for path, file in texts.items() if file is not None)
    return sha256(repr(there).encode()).hexdigest()


def of_others(engine: EngineFacts, facts: Facts) -> Texts:
    """Return the configs of an engine as they lie there, less files that we created and nobody has edited.

    What such a file takes from the others is taken by us: a drop-in that adds to them in containerd 2.x
    replaces what they say of CRI in 1.x.
    """
    texts = dict(present(engine, facts))
    for row in facts.held.configs:
        now = texts.get(row.path)
        if row.engine == engine.name and row.original is None and now is not None and now.digest in row.ours:
            texts[row.path] = None
    return texts


def in_force(engine: EngineFacts, facts: Facts, now: Texts, ask: Ask) -> Effect:
    """Return what an engine has in force that was not put there by us alone."""
    theirs = ask(engine, {**now, **of_others(engine, facts)})
    return ask(engine, now) if theirs.broken or theirs.undefined else theirs
