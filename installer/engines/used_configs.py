"""The configs that the engines of this node use: at their usual places, by command lines, and by units.

Without a ledger nothing else tells where an install has found an engine's config. No engine is asked: a
question would start a Docker that its owner has stopped.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.config_files import with_places, with_readable_configs
from installer.engines.engine_processes import BY_PROCESS, list_engine_processes
from installer.engines.startup import predict_next_start
from installer.errors import InstallerError
from installer.host import systemd
from installer.host.files import Host
from installer.host.processes import UnfinishedError
from installer.model.engine import Engine, EngineState, Started
from installer.model.files import PATH, Kind
from installer.model.options import Places

ASK_S: Final = 5.0  # for each unit; after the first silence no other unit is asked for
RUNNING: Final = frozenset({"active", "reloading"})


def list_used_configs(
    host: Host, places: Mapping[str, Places] | None = None
) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield each config that an engine uses or may use, imported files too, with the engine's name.

    Args:
        host: the node.
        places: the places of the options, by engine.
    """
    for kind in ENGINES.values():
        if not kind.built_in_runtime:
            named = (places or {}).get(kind.name, Places())
            usual = EngineState.usual(kind)
            usual = replace(
                usual, config=named.config or usual.config, drop_in=named.drop_in or usual.drop_in
            )
            yield from _list_files(host, usual)
    with suppress(UnfinishedError):  # an undo that removes a toolkit reports too many processes
        for process in list_engine_processes(host):
            yield from list_configs_of_start(host, process.kind, Started(process.words))
    yield from list_configs_of_next_starts(host)


def list_configs_of_next_starts(host: Host) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield each config that an engine reads at its next start by its unit, with the engine's name."""
    with suppress(InstallerError):  # without systemd the usual places are all that is known
        for kind in BY_PROCESS.values():
            unit = systemd.read_unit(host, kind.unit, timeout_s=ASK_S)
            start = predict_next_start(host, EngineState.usual(kind), unit.start)
            if start is not None:
                yield from list_configs_of_start(host, kind, start)


def list_unknown_starts(host: Host) -> Iterator[tuple[Engine, str]]:
    """Yield each engine whose unit is stopped and shows no command line of the engine, with its program.

    The program is a shell or a script, for example. The engine's config is unknown until the engine runs.
    """
    with suppress(InstallerError):
        for kind in BY_PROCESS.values():
            unit = systemd.read_unit(host, kind.unit, timeout_s=ASK_S)
            if unit.active in RUNNING or not unit.start.words:
                continue
            program = unit.start.program
            # A unit without its program starts nothing.
            if not any(host.kind(directory / program) is Kind.FILE for directory in PATH):
                continue
            if predict_next_start(host, EngineState.usual(kind), unit.start) is None:
                yield kind, program


def list_configs_of_start(host: Host, kind: Engine, start: Started) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield each config that an engine reads by the command line of a start, with the engine's name."""
    with suppress(InstallerError):  # a config that cannot be read is reported where an engine is observed
        engine = replace(EngineState.usual(kind), started=start)
        yield from _list_files(host, with_places(host, engine, Places()))


def _list_files(host: Host, engine: EngineState) -> Iterator[tuple[str, PurePosixPath]]:
    for path in with_readable_configs(host, engine).files:
        yield engine.name, path
