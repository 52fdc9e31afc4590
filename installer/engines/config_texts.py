"""The texts of an engine's configs: decoded, parsed, and the settings that they bring into force."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TypeAlias

from installer.config_text import Syntax, Tree
from installer.config_text.change import parse
from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig
from installer.model.engine import Configs, EngineState
from installer.model.facts import Facts
from installer.model.files import File

Texts: TypeAlias = Mapping[PurePosixPath, File | None]
# A dry run: returns the settings that an engine would have in force with these texts alone.
DryRun: TypeAlias = Callable[[EngineState, Texts], EffectiveConfig]


def predict_from_texts(engine: EngineState, texts: Texts) -> EffectiveConfig:
    """Predict the settings of texts from the texts alone: a ``DryRun`` without a program."""
    return engine.kind.predict(engine, read_configs(engine, texts))


def read_configs(engine: EngineState, files: Texts) -> Configs:
    """Decode and parse the texts of files; raise for an invalid text."""
    texts = decode_configs(engine, files)
    trees = {}
    for path, text in texts.items():
        trees[path] = parse(text, syntax_of(path, text, engine.name), name=str(path))
    return Configs(texts, trees)


def decode_configs(engine: EngineState, files: Texts) -> dict[PurePosixPath, str]:
    """Decode the texts of files, in the order of the engine's reading; raise for a text not in UTF-8."""
    texts = {}
    for path in dict.fromkeys((*engine.files, *sorted(files))):
        file = files.get(path)
        if file is not None:
            texts[path] = text_of(file, path)
    return texts


def read_present(engine: EngineState, facts: Facts) -> Texts:
    """Return the present configs of an engine."""
    return {path: facts.contents.get(path) for path in engine.files}


def digest_of(texts: Texts) -> str:
    """Compute the digest of texts and their paths; a write to a text changes the digest."""
    digests = []
    for path, file in texts.items():
        if file is not None:
            digests.append((str(path), file.digest))
    return sha256(repr(sorted(digests)).encode()).hexdigest()


def syntax_of(path: PurePosixPath, text: str, name: str = "") -> Syntax:
    """Return the syntax of a config by its text, its path, or the usual path of the engine ``name``."""
    usual = ENGINES[name].config if name in ENGINES else path
    # A config may have any name, but no TOML begins with a brace.
    has_brace = text.lstrip("\ufeff \t\r\n").startswith("{")
    if has_brace or ".json" in (path.suffix, usual.suffix):
        return Syntax.JSON
    return Syntax.TOML


def text_of(file: File | None, path: PurePosixPath) -> str:
    """Return the text of a config, "" without a file; raise if the bytes are not UTF-8."""
    try:
        return file.content.decode() if file else ""
    except UnicodeDecodeError as error:
        problem = f"read {path} (byte {error.start} is not UTF-8)"
        remedy = "save the file as UTF-8, then run again"
        raise InstallerError(problem, remedy=remedy, code="config-unusable") from error


def tree_of(file: File | None, path: PurePosixPath) -> Tree:
    """Return the tree of a config, empty without a file; raise if the text is not valid."""
    text = text_of(file, path)
    return parse(text, syntax_of(path, text), name=str(path))


def toolkit_runtimes(config_toml: str) -> tuple[str, ...]:
    """List the low-level runtimes in the toolkit's config.toml, preferred first; raise for invalid text."""
    tree = parse(config_toml, Syntax.TOML, name="config.toml")
    section = tree.get("nvidia-container-runtime")
    if not isinstance(section, Mapping):
        return ()
    runtimes = section.get("runtimes")
    if not isinstance(runtimes, list):
        return ()
    return tuple(map(str, runtimes))
