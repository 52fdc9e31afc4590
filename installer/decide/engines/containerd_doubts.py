"""Why a containerd would not serve our runtimes, as far as texts tell: the words for what it only does."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from installer.decide.engines.containerd_config import DEFAULT, PLUGIN_IDS, Config, major, schema_of
from installer.decide.engines.containerd_effect import BUILT_IN
from installer.decide.engines.model import ConfigFiles, RuntimeEntry, table
from installer.decide.errors import InstallerError, Option, Remedy


def refuse_without_cri(files: ConfigFiles) -> None:
    """Raise where CRI is switched off.

    Raises:
        InstallerError: always in that case.
    """
    for path, tree in files.trees.items():
        names = tree.get("disabled_plugins")
        off = [name for name in PLUGIN_IDS if isinstance(names, list) and name in names]
        if off:
            raise InstallerError(
                f"configure {files.engine} in {path} (disabled_plugins switches CRI off)",
                remedy=Remedy(
                    "choose ", Option("runtime", "docker"), f", or remove {off[0]} from disabled_plugins"
                ),
            )


def refuse_dormant(files: ConfigFiles, target: PurePosixPath, pattern: PurePosixPath) -> None:
    """Raise where the import for a drop-in of ours would bring a file of others into force.

    Raises:
        InstallerError: always in that case.
    """
    if files.dormant:
        other = min(files.dormant)
        raise InstallerError(
            f"configure {files.engine} in {target} (its import {pattern} would take {other} too, which "
            "nothing imports now)",
            remedy=Remedy("name another file with ", Option("drop-in-config"), f", or move {other} away"),
        )


def doubts(
    files: ConfigFiles, config: Config, target: PurePosixPath, entries: tuple[RuntimeEntry, ...]
) -> Iterator[InstallerError]:
    """Yield why containerd would not serve our runtimes, as far as the texts tell."""
    name = files.engine
    if config.schema == 1 and major(files) == 2:
        yield InstallerError(
            f"configure {name} in {config.path} (2.x ignores a file of schema 1 or without a version)",
            remedy="rewrite it with containerd config migrate, then run again",
        )
    if config.schema not in (1, 2) and (major(files) == 1 or config.schema < 1):
        yield InstallerError(
            f"configure {name} in {config.path} (this containerd does not read schema {config.schema})",
            remedy="set the version that the installed containerd writes in containerd config default",
        )
    for path, tree in config.imported.items():
        version = schema_of(path, tree, config.schema)
        if config.merges and version > config.schema:
            # 2.1 and 2.2 forget the CRI settings of the root file then, 2.3 does not start
            # (engine-facts.md#containerd-imports).
            yield InstallerError(
                f"configure {files.engine} in {config.path} ({path} is imported and has schema {version}, "
                f"the root file {config.schema})",
                remedy="give both the same version",
            )
    known = {"", BUILT_IN, *config.runtimes, *(entry.name for entry in entries)}
    if config.default not in known and not any(entry.default for entry in entries):
        yield InstallerError(
            f'configure {files.engine} in {config.path} (its default_runtime_name "{config.default}" is not '
            "defined: CRI would not load)",
            remedy="define that runtime, or correct default_runtime_name",
        )
    yield from _overruled(files.engine, config, target, entries)


def _overruled(
    engine: str, config: Config, target: PurePosixPath, entries: tuple[RuntimeEntry, ...]
) -> Iterator[InstallerError]:
    """Yield what is stronger than what we write."""
    default = any(entry.default for entry in entries)
    later = list(config.imported)
    later = later[later.index(target) + 1 :] if target in later else later
    for path in later if config.merges else ():
        cri = table(config.imported[path], config.key, path)
        names = {entry.name for entry in entries} & table(cri, ("runtimes",), path).keys()
        if names or (DEFAULT in cri and default):
            word = f"the runtime {min(names)}" if names else DEFAULT
            yield InstallerError(
                f"configure {engine} ({path} is imported after our file and sets {word} too)",
                remedy=f"remove {word} from {path}",
            )
