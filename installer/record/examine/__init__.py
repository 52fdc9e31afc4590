"""A node as ``doctor`` judges it: reads only, each question with an end, what fails is left open."""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.doctor.facts import Node, RunningEngine, Toolkit
from installer.decide.options import Options
from installer.host.files import Host
from installer.host.process_table import of_root, sees_host
from installer.host.threads import beside
from installer.record.examine.driver import driver, names, specifications
from installer.record.examine.engines import engines
from installer.record.examine.programs import asked_processes, asked_runc
from installer.record.examine.system import system
from installer.record.examine.toolkits import toolkits
from installer.record.hints import driver_root
from installer.record.texts import is_file

ROOT: Final = PurePosixPath("/")


def examine(host: Host, options: Options) -> Node:
    """Return everything that is judged; nothing is written, locked, started or signalled."""
    seen = tuple(of_root(host, unread=True))
    with beside() as begin:
        # What is asked of programs and engines waits for different things.
        processes = begin(lambda: asked_processes(host, seen), long=True)
        runc = begin(lambda: asked_runc(host), long=True)
        found = begin(lambda: toolkits(host, options), long=True)
        running = begin(lambda: engines(host, options, seen), long=True)
        node = system(host, seen)
        there = found()
        return Node(
            driver=driver(host, _driver_root(host, options, there)),
            specs=specifications(host),
            toolkits=there,
            engines=running(),
            processes=processes(),
            runc=runc(),
            programs=_programs(host, there, running()),
            system=node,
            sees_host=sees_host(host),
        )


def _driver_root(host: Host, options: Options, found: tuple[Toolkit, ...]) -> PurePosixPath:
    """Return where the toolkit looks for the driver: as its config says, else where there is one."""
    for toolkit in found:
        table = toolkit.config.get("nvidia-container-cli") if toolkit.config else None
        root = table.get("root") if isinstance(table, dict) else None
        if isinstance(root, str) and root.startswith("/"):
            return PurePosixPath(root)
    named = PurePosixPath(driver_root(host, options)[0])
    return named if names(host, named) else ROOT


def _programs(host: Host, found: tuple[Toolkit, ...], running: tuple[RunningEngine, ...]) -> frozenset[str]:
    """Return those of the programs that somebody names by a path that are there."""
    named: set[str] = set()
    for toolkit in found:
        for table in (toolkit.config or {}).values():
            for value in table.values() if isinstance(table, dict) else ():
                words = value if isinstance(value, list) else [value]
                named |= {word.removeprefix("@") for word in words if isinstance(word, str)}
    for engine in running:
        named |= set(engine.serving.binaries.values()) if engine.serving else set()
    paths = {path for path in named if path.startswith("/") and "\0" not in path}
    return frozenset(path for path in paths if is_file(host, PurePosixPath(path)))
