"""What an undo minds of CRI-O: files of others that name the same runtimes, and hooks."""

from collections.abc import Iterable, Iterator

from installer.decide.configs import tree_of
from installer.decide.engines.crio_effect import named
from installer.decide.engines.model import RuntimeEntry
from installer.decide.facts import EngineFacts, Facts
from installer.decide.rows import ConfigRow, EngineRow
from installer.decide.steps import WriteConfig

CRIO = "crio"


def leaving(
    engine: EngineRow, writes: Iterable[WriteConfig], found: EngineFacts | None, facts: Facts
) -> Iterator[RuntimeEntry]:
    """Yield the runtimes of ours that an engine has to be without when its configs are given back.

    NVIDIA's installer leaves a drop-in of CRI-O's that names the same ones, which stay served.
    """
    texts = {**facts.contents, **{step.path: step.after for step in writes}}
    files = found.files if found is not None and engine.name == CRIO else ()
    said = named(tree_of(texts[path], path) for path in files)
    for name, binary in engine.runtimes:
        if said.get(name) != str(binary):
            yield RuntimeEntry(name, binary)


def is_hook(row: ConfigRow) -> bool:
    """Tell whether a row is that of an OCI hook."""
    return row.engine == CRIO and row.path.suffix == ".json"
