"""The texts of an engine's configs, and whom to ask what they come to."""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TypeAlias

from installer.config_text import Syntax, parse
from installer.engines import ENGINES
from installer.engines.config_edits import syntax_of, text_of, without_us
from installer.model.effective import EffectiveConfig
from installer.model.engine_spec import ConfigFiles
from installer.model.facts import EngineState, Facts
from installer.model.files import File
from installer.model.record import ConfigRow

Texts: TypeAlias = Mapping[PurePosixPath, File | None]
# What an engine would have in force with these texts, and without any other.
Ask: TypeAlias = Callable[[EngineState, Texts], EffectiveConfig]


def texts_alone(engine: EngineState, texts: Texts) -> EffectiveConfig:
    """Return what texts have in force as far as they tell by themselves: an ``Ask`` that asks nobody."""
    return ENGINES[engine.name].estimate(config_files(engine, texts))


def config_files(engine: EngineState, texts: Texts, *, parsed: bool = True) -> ConfigFiles:
    """Return texts as the engine's functions take them; raise where one of them is not valid."""
    order = dict.fromkeys((*engine.files, *sorted(texts)))
    words = {path: text_of(texts[path], path) for path in order if texts.get(path) is not None}
    trees = {
        path: parse(text, syntax_of(path, text, engine.name), name=str(path))
        for path, text in words.items()
        if parsed
    }
    return ConfigFiles(
        engine.config,
        engine.drop_in,
        trees,
        engine.version,
        engine.hook,
        None,
        engine.serving,
        words,
        engine.flags,
        engine.unreadable,
        engine.dormant,
        engine.rendered.content.decode(errors="replace") if engine.rendered else "",
        ENGINES[engine.name].title,
        engine.gone,
    )


def files_without_us(engine: EngineState, facts: Facts) -> dict[PurePosixPath, File | None]:
    """Return each config of an engine as it would be without us; raise where an edited one is not valid."""
    held = (row.path for row in configs_of(engine, facts))
    return {path: without_us(path, facts) for path in dict.fromkeys((*engine.files, *held))}


def configs_of(engine: EngineState, facts: Facts) -> Iterator[ConfigRow]:
    """Yield the rows of an engine but for copies of its root file: a revert may need what stands there."""
    for row in facts.held.configs:
        if row.engine == engine.name and not ENGINES[engine.name].is_copy(row.path):
            yield row


def present(engine: EngineState, facts: Facts) -> Texts:
    """Return the configs of an engine as they lie there."""
    return {path: facts.contents.get(path) for path in engine.files}


def digest_of(texts: Texts) -> str:
    """Return the digest of texts and of their places: whether somebody has written since."""
    there = sorted((str(path), file.digest) for path, file in texts.items() if file is not None)
    return sha256(repr(there).encode()).hexdigest()


def in_force(engine: EngineState, facts: Facts, now: Texts, ask: Ask) -> EffectiveConfig:
    """Return what an engine has in force that was not put there by us alone.

    A file that we created and nobody has edited does not count, and what it takes from the others is taken by
    us: a drop-in that adds to them in containerd 2.x replaces what they say of CRI in 1.x.
    """
    there = present(engine, facts)
    texts = {**now, **there}
    for row in facts.held.configs:
        file = there.get(row.path)
        if row.engine == engine.name and row.original is None and file and file.digest in row.ours:
            texts[row.path] = None
    effect = ask(engine, texts)
    return ask(engine, now) if effect.broken or effect.undefined else effect


def toolkit_runtimes(config_toml: str) -> tuple[str, ...]:
    """Return the low-level runtimes that the toolkit's config.toml names, preferred first; raise for none."""
    tree = parse(config_toml, Syntax.TOML, name="config.toml")
    section = tree.get("nvidia-container-runtime")
    runtimes = section.get("runtimes") if isinstance(section, Mapping) else None
    return tuple(map(str, runtimes)) if isinstance(runtimes, list) else ()
