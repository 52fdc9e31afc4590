"""Directories: made for the files that other parts write, and removed if they are ours."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from installer.decide.facts import Facts
from installer.decide.options import Options
from installer.decide.part import Part
from installer.decide.rows import Record
from installer.decide.steps import MakeDirectory, RemoveDirectory, WriteConfig, WriteSpecification

ID: Final = "directories"


def install(facts: Facts, parts: Iterable[Part]) -> Part:
    """Return how the directories of all files that ``parts`` write are made, and what stands against that."""
    steps = (step for part in parts for step in part.steps)
    written = {step.path for step in steps if isinstance(step, WriteConfig | WriteSpecification)}
    paths = written | {facts.targets[path] for path in written & facts.targets.keys()}
    needed = {parent for path in paths for parent in path.parents} & facts.missing
    made = sorted(needed, key=lambda path: len(path.parts))
    why = [f"{next(path for path in sorted(paths) if each in path.parents)} goes there" for each in made]
    return Part(
        ID,
        tuple(map(MakeDirectory, made)),
        tuple(why),
        Record(directories=tuple(made)),
        obstacles=tuple(error for path, error in sorted(facts.unwritable.items()) if path in written),
    )


def undo(facts: Facts, options: Options, also: tuple[PurePosixPath, ...], *, stays: bool) -> Part:
    """Return how the directories that we made go, and ``also`` others, unless something of ours ``stays``.

    Those that hold the ledger go with it, after all else.
    """
    held = (*facts.held.directories, *also)
    made = [path for path in held if path not in options.layout.home.parents] if not stays else []
    steps = tuple(RemoveDirectory(path) for path in sorted(made, key=lambda path: -len(path.parts)))
    return Part(ID, steps, ("we had made it",) * len(steps), Record(directories=held))
