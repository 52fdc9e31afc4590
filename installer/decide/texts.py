"""The texts of an engine's configs, and whom to ask what they come to."""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TypeAlias

from installer.decide.effect import Effect
from installer.decide.facts import EngineFacts, Facts
from installer.decide.inode import File

Texts: TypeAlias = Mapping[PurePosixPath, File | None]
# What an engine would have in force with these texts, and without any other.
Ask: TypeAlias = Callable[[EngineFacts, Texts], Effect]


def present(engine: EngineFacts, facts: Facts) -> Texts:
    """Return the configs of an engine as they lie there."""
    return {path: facts.contents.get(path) for path in engine.files}


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
