"""What an undo minds of CRI-O: files of others that name our programs, and hooks."""

from collections.abc import Mapping
from pathlib import PurePosixPath

from installer.decide.configs import tree_of
from installer.decide.engines import ENGINES
from installer.decide.engines.crio_effect import named
from installer.decide.facts import Facts
from installer.decide.inode import File
from installer.decide.layout import Layout
from installer.decide.rows import ConfigRow

CRIO = ENGINES["crio"]


def ignored(
    facts: Facts, texts: Mapping[PurePosixPath, File | None], layout: Layout
) -> frozenset[PurePosixPath]:
    """Return the files of CRI-O that may go on naming programs of the toolkit when that has gone.

    NVIDIA's installer leaves such a drop-in at its end. CRI-O leaves a runtime out whose program is not
    there, and starts, unless it is the default (cri-o pkg/config: "Runtime handler is being ignored").
    """
    found = next((engine.files for engine in facts.engines if engine.name == CRIO.name), ())
    usual = (path for path in sorted(texts) if CRIO.drop_in_dir in path.parents or path == CRIO.config)
    paths = tuple(path for path in found or usual if path.suffix != ".json")
    runtimes, default = named(tree_of(texts.get(path), path) for path in paths)
    needed = facts.leads_into(runtimes.get(default, ""), layout)
    return frozenset() if needed else frozenset(paths)


def is_hook(row: ConfigRow) -> bool:
    """Tell whether a row is that of an OCI hook."""
    return row.engine == CRIO.name and row.path.suffix == ".json"
