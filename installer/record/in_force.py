"""Whether the configs of an engine still come to what was installed, whatever becomes of single keys."""

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import syntax_of, text_of
from installer.decide.edits import parse
from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.model import ConfigFiles
from installer.decide.facts import EngineFacts
from installer.decide.rows import ConfigRow, EngineRow
from installer.host.files import Host
from installer.record.configs import with_configs

# A probe comes every few seconds: texts beyond this are left to an install, which reads them all.
AT_MOST_BYTES: Final = 256 << 10


def lacking(host: Host, row: EngineRow, rows: Collection[ConfigRow]) -> tuple[str, ...]:
    """Return, in words, what the configs of one engine do not come to any more; no engine is asked.

    ``rows`` are those of its configs.

    Raises:
        InstallerError: a config cannot be read, or is not valid.
    """
    found = _effect(host, row, rows)
    return () if found is None else tuple(_lacking(row, found))


def _effect(host: Host, row: EngineRow, rows: Collection[ConfigRow]) -> Effect | None:
    """Return what the texts alone tell; None where nothing has to be said there, or they are too long."""
    engine, config = ENGINES[row.name], row.config
    paths = {each.path for each in rows} | ({config} if config else set())
    if config is None or engine.finds or sum(_bytes(host, path) for path in paths) > AT_MOST_BYTES:
        return None
    drop_in = next((each.path for each in rows if each.written and each.path != config), engine.drop_in)
    facts = EngineFacts(row.name, config, drop_in, None, (), row.socket, row.unit)
    facts = with_configs(host, engine, facts)
    files = {path: file for path in facts.files if (file := host.read(path)) is not None}
    texts = {path: text_of(file, path) for path, file in files.items()}
    trees = {
        path: parse(text, syntax_of(path, text, row.name), name=str(path)) for path, text in texts.items()
    }
    return engine.effect(
        ConfigFiles(
            config,
            drop_in,
            trees,
            row.version,
            files=files,
            unreadable=facts.unreadable,
            rendered=facts.rendered,
        )
    )


def _lacking(row: EngineRow, found: Effect) -> Iterator[str]:
    if found.broken:
        yield f"{row.title} would not start with them ({found.broken})"
        return
    for name, binary in row.runtimes:
        handler = found.handlers.get(name)
        if handler is None:
            yield f"the runtime {name} is not defined"
        elif handler.binary != str(binary):
            yield f"the runtime {name} starts {handler.binary or 'something else'}"
    if row.default and found.default != row.default:
        yield f"the default runtime is {found.default}, not {row.default}"


def _bytes(host: Host, path: PurePosixPath) -> int:
    file = host.read(path)
    return len(file.content) if file else 0
