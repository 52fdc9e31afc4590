"""What of a node is watched while ``run`` waits: the places that its ledger tells."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from installer.decide.engines import ENGINES
from installer.decide.layout import Layout
from installer.decide.rows import Record


def watched(layout: Layout, held: Record) -> Iterator[tuple[PurePosixPath, bool]]:
    """Yield what the rows of the ledger tell to be watched, and whether all that is in it."""
    for row in held.configs:
        yield row.path, False
    for engine in held.engines:
        for directory in _config_directories(engine.name, engine.config):
            yield directory, True
    yield from ((path, False) for path in (layout.toolkit, layout.config, layout.ledger))
    if held.toolkit is not None:
        yield layout.version(held.toolkit.version), True


def _config_directories(name: str, config: PurePosixPath | None) -> Iterable[PurePosixPath]:
    engine = ENGINES[name]
    own = config or engine.config
    directories = (own.parent, own.parent / "conf.d", engine.drop_in_dir)
    return dict.fromkeys(each for each in directories if each is not None)
