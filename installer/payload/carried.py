"""An owner's files in the toolkit's directory that an engine's config names: each new version gets copies.

Without them an engine may not start, or a runtime of the owner's may be gone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from installer.model.facts import Reference
from installer.model.files import NOTES, Carried, PayloadFile
from installer.payload.files import real_name

# What configs, flags and running engines name in the toolkit's directory, by the paths below it.
Named = Mapping[PurePosixPath, Sequence[Reference]]


def find_displaced(files: Iterable[PayloadFile], named: Named) -> tuple[PurePosixPath, ...]:
    """Return each named path of the toolkit's directory that a version does not have."""
    known: set[PurePosixPath] = {NOTES}
    for file in files:
        known.update((file.path, *file.path.parents))
    return tuple(path for path in sorted(named) if path not in known)


def choose_carried(
    displaced: Iterable[PurePosixPath],
    files: Iterable[PayloadFile],
    portable: Mapping[PurePosixPath, Carried],
) -> tuple[Carried, ...]:
    """Return the owner's files that a version gets beside its own ``files``.

    A wrapper starts the program beside it with the name of ``real_name``, which no config names.
    """
    chosen: list[Carried] = []
    taken = {NOTES, *(file.path for file in files)}
    for path in displaced:
        if path not in portable:
            continue
        for each in (path, path.with_name(real_name(path.name))):
            carried = portable.get(each)
            # No directory can have the name of a file.
            if carried is not None and taken.isdisjoint((each, *each.parents)):
                taken.add(each)
                chosen.append(carried)
    return tuple(chosen)


def explain_displaced(
    displaced: Iterable[PurePosixPath], carried: Iterable[Carried], named: Named
) -> Iterator[str]:
    """Note each named path that the new toolkit does not have, and what becomes of the file.

    It is no reason to refuse: a toolkit of NVIDIA's that ended by a kill leaves such configs on a node.
    """
    copied = {file.path for file in carried}
    for path in displaced:
        advice = "move that program elsewhere and name its new path there, or remove what names it"
        if path in copied:
            advice = "that file is copied into it"
        for each in named[path]:
            yield f"{each.how} {each.program}, which the new toolkit does not have: {advice}"
