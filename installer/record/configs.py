"""The configs that an engine reads: its root file, its drop-ins, what they import."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
from installer.decide.engines.containerd_config import patterns
from installer.decide.engines.model import Engine
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import Kind
from installer.host.files import Host

WILDCARDS: Final = frozenset("*?[")


def configs_read(host: Host, engine: Engine, facts: EngineFacts) -> Iterator[PurePosixPath]:
    """Yield the configs an engine reads, in its order; none where it writes them itself.

    Raises:
        InstallerError: the root file is not valid, so that nobody knows what it imports.
    """
    if engine.found_by:
        return
    yield facts.config
    beside: set[PurePosixPath] = set()
    if engine.drop_in_dir is not None:
        directory = facts.drop_in.parent if facts.drop_in else engine.drop_in_dir
        beside |= set(_walk(host, directory))
    if engine.name == "containerd":
        beside |= set(_imports(host, facts.config))
    if facts.drop_in is not None:
        beside.add(facts.drop_in)
    yield from sorted(beside - {facts.config})


def _walk(host: Host, directory: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield each file below ``directory``: CRI-O reads them all, whatever their names."""
    for name in host.names(directory):
        kind = host.kind(directory / name)
        if kind is Kind.DIRECTORY:
            yield from _walk(host, directory / name)
        elif kind is Kind.FILE:
            yield directory / name


def _imports(host: Host, config: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the files that a containerd config imports, and those that these import in turn."""
    seen, waiting = {config}, [config]
    while waiting:
        path = waiting.pop()
        try:
            tree = tree_of(host.read(path), path)
        except InstallerError:
            if path == config:
                raise
            continue  # somebody else's: containerd itself says what is wrong with it
        for pattern in patterns(path, tree):
            fresh = [other for other in _matching(host, pattern) if other not in seen]
            seen.update(fresh)
            waiting += fresh
            yield from fresh


def _matching(host: Host, pattern: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the files that a pattern takes: Go's filepath.Glob, wildcards in the names of directories too."""
    found = [PurePosixPath("/")]
    for part in pattern.parts[1:]:
        if set(part) & WILDCARDS:
            within = [(directory, name) for directory in found for name in sorted(host.names(directory))]
            found = [directory / name for directory, name in within if fnmatchcase(name, part)]
        else:
            found = [directory / part for directory in found]
    yield from (path for path in found if host.kind(path) is Kind.FILE)


def readable_configs(host: Host, engine: Engine, facts: EngineFacts) -> tuple[PurePosixPath, ...]:
    """Return the configs an engine reads; of a root file that is not valid that file alone."""
    try:
        return tuple(configs_read(host, engine, facts))
    except InstallerError:
        return (facts.config,)


def usual_configs(host: Host, engine: Engine) -> tuple[PurePosixPath, ...]:
    """Return the configs of an engine at its usual place, whether it runs or not."""
    usual = EngineFacts(engine.name, engine.config, None, None, (), engine.socket, engine.unit)
    return readable_configs(host, engine, usual)
