"""Engines that run beside those of the ledger, wherever they listen: what they have of the toolkit."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES, generating
from installer.decide.engines.row import Engine
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts, OtherEngine
from installer.decide.layout import Layout
from installer.decide.options import Places
from installer.decide.references import programs_named
from installer.host.files import Host
from installer.host.process_table import PROC, Seen, of_root
from installer.host.processes import listening, unit_of
from installer.record.configs import contents_of, with_readable_configs
from installer.record.engines import ask
from installer.record.handed import given_back
from installer.record.links import Ours, candidates
from installer.record.reads import with_places
from installer.record.started import flags_and_paths

# Of several with one process the first is the one that others are made from.
ROWS: Final = {engine.process: engine for engine in reversed(ENGINES.values()) if engine.generated is None}
ANSWER_S: Final = 1.0  # of several sockets, one that is no API hangs perhaps


def with_other_engines(host: Host, facts: Facts, layout: Layout) -> Facts:
    """Return the facts with each such engine that runs and names a program of the toolkit, as it sees it."""
    ours, found = Ours(host, layout), []
    for seen in (each for each in of_root(host) if each.name in ROWS):
        with suppress(InstallerError):
            if not _known(host, seen, facts):
                found.append(_other(host, seen, facts, ours))
    return replace(facts, other_engines=tuple(each for each in found if each.named))


def _known(host: Host, seen: Seen, facts: Facts) -> bool:
    """Tell whether a process is an engine of the ledger, or one that looks for the toolkit at each start."""
    unit = unit_of(seen.pid, host.local_path(PROC))
    for engine in facts.engines:
        same = ENGINES[engine.name].process == seen.name
        if same and (engine.pid == seen.pid or (engine.pid is None and unit and engine.unit == unit)):
            return True
    return any(generating(seen.name, path, path) for path in map(PurePosixPath, seen.cmdline))


def _other(host: Host, seen: Seen, facts: Facts, ours: Ours) -> OtherEngine:
    """Return what an engine names of the toolkit, by the file that does, or by the runtime it serves.

    In a mount namespace of its own it may have other files at the same paths.
    """
    row, process = ROWS[seen.name], host.local_path(PROC) / str(seen.pid)
    view = host if seen.of_host else Host.under(PurePosixPath(process / "root"))
    flags, paths = flags_and_paths(process, row)
    engine = EngineFacts(row.name, row.config, row.drop_in, None, (), row.socket, "")
    engine = with_readable_configs(view, row, with_places(view, engine, seen.cmdline, Places()))
    told = [
        (f"reads {path}, which names", value)
        for path, file in contents_of(view, engine.files).items()
        if not (seen.of_host and path in facts.contents)  # that is judged as it will be
        for value in programs_named(file, path)
    ]
    told += [
        (f"was started with a flag for {name}, which starts", path) for name, path in flags.runtimes.items()
    ]
    told += [(f"serves {name}, which starts", path) for name, path in _served(view, row, process)]
    return OtherEngine(
        row.name,
        unit_of(seen.pid, process.parent) or f"pid {seen.pid}",
        tuple(
            f"{how} {value}"
            for how, value in told
            if _is_ours(view, value, paths, ours) and not given_back(view, value, ours.layout)
        ),
    )


def _served(view: Host, row: Engine, process: Path) -> Iterable[tuple[str, str]]:
    """Return the runtimes, with their programs, that an engine serves at one of its sockets."""
    for socket in sorted(listening(process), key=len):
        answer = ask(row, view.local_path(PurePosixPath(socket)), timeout_s=ANSWER_S)
        if answer.serving is not None or answer.failed:
            return answer.serving.binaries.items() if answer.serving else ()
    return ()


def _is_ours(view: Host, value: str, paths: Iterable[tuple[PurePosixPath, ...]], ours: Ours) -> bool:
    with suppress(InstallerError):
        return any(ours.behind(view, path) is not None for path in candidates(view, value, paths))
    return False
