"""The containers that run on our runtimes, whichever engine started them."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import text_of, tree_of
from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.engines.model import OUR_BINARIES
from installer.decide.engines.row import Api, Monitor
from installer.decide.errors import InstallerError
from installer.decide.facts import Container, EngineFacts
from installer.decide.inode import Kind
from installer.decide.layout import Layout
from installer.decide.rows import EngineRow, Record
from installer.decide.toolkit_config import low_level_words
from installer.host import docker_data, dockerd
from installer.host.containers import STATES, of_crio, of_docker, of_shims
from installer.host.devices import size_of
from installer.host.dockerd import DockerContainer
from installer.host.files import Host
from installer.host.programs import is_program
from installer.record.cmdline import path_of, value_of
from installer.record.engines import is_held
from installer.record.links import Ours
from installer.record.started import PATH, how_started
from installer.record.texts import is_file

ASK_S: Final = 3.0
DATA_ROOT: Final = ("--data-root",)
USUAL: Final = ("runc", "crun")


def running_containers(
    host: Host,
    layout: Layout,
    held: Record,
    engines: Collection[EngineFacts],
    *,
    restarts: bool = True,
) -> tuple[Container, ...]:
    """Return the containers that were started by the runtimes of this install-dir and are not removed yet.

    So are those that have a hook of this install-dir still to run, whoever started them.

    An engine that has been undone may still run some: a forced undo leaves them links.
    Where nobody ``restarts`` CRI-O, a container that asked for nothing needs what is its default now.
    """
    if held.toolkit is None:
        return ()
    binaries = frozenset(layout.toolkit / name for name in OUR_BINARIES)
    leads = partial(_leads, host, Ours(host, layout))
    found = [*of_shims(host, _states(engines), binaries, leads)]
    for row in held.engines:
        usual = ENGINES[row.name].state
        if usual.monitor is Monitor.CONMON:
            engine = next((engine for engine in engines if engine.name == row.name), None)
            # A pod on a handler of its owner's needs our program, too (engine-facts.md#crio-absent-program).
            told = engine.serving if engine else None
            paths = {name: PurePosixPath(path) for name, path in told.binaries.items()} if told else {}
            handlers = {name: path for name, path in paths.items() if path in binaries} | dict(row.runtimes)
            if told and told.default in handlers and not restarts:
                handlers[""] = handlers[told.default]
            state = (engine and engine.state) or row.state or usual.usual
            found += of_crio(host, state, handlers, binaries, leads)
    return tuple(found)


def _leads(host: Host, ours: Ours, path: str) -> PurePosixPath | None:
    """Return the file of the toolkit that a hook is, by whatever name."""
    with suppress(InstallerError):
        return ours.behind(host, PurePosixPath(path)) if path.startswith("/") else None
    return None


def _states(engines: Collection[EngineFacts]) -> dict[PurePosixPath, str]:
    """Return where shims leave what they run, and to which engine that belongs."""
    return STATES | {
        engine.state: engine.name
        for engine in engines
        if engine.state and ENGINES[engine.name].state.monitor is Monitor.SHIM
    }


def in_use(
    host: Host,
    layout: Layout,
    held: Record,
    engines: Collection[EngineFacts],
    *,
    restarts: bool = True,
) -> tuple[tuple[Container, ...], tuple[str, ...]]:
    """Return the containers that need our runtimes, and the names of Docker's stopped ones that do.

    Docker's container that crashes again and again has no shim between two lives, and needs our runtime for
    the next. Docker is asked first: one that it calls running, and that has no shim then, has just ended.
    """
    row = next((row for row in held.engines if ENGINES[row.name].api is Api.DOCKER), None)
    known = _known_to_docker(host, row, engines) if row else ()
    running = running_containers(host, layout, held, engines, restarts=restarts)
    if row is None:
        return running, ()
    names = {each.id: each.name for each in known}
    ours = dict(row.runtimes)
    named = [each for each in known if each.runtime in ours and each.id not in {one.id for one in running}]
    shims = of_docker(host, _states(engines))
    again = [
        Container(row.name, each.id, each.name, ours[each.runtime])
        for each in named
        if held.toolkit and (each.restarting or (each.running and each.id not in shims))
    ]
    idle = sorted(each.name for each in named if not (each.running or each.restarting))
    return (*(replace(each, name=names.get(each.id, each.name)) for each in running), *again), tuple(idle)


def _known_to_docker(
    host: Host, row: EngineRow, engines: Collection[EngineFacts]
) -> tuple[DockerContainer, ...]:
    """Return the containers of a dockerd that answers, or of one that is stopped."""
    engine = next((engine for engine in engines if engine.name == row.name), None)
    answers = engine is not None and engine.serving is not None
    if answers or not is_held(host, ENGINES[row.name], row.socket, row.unit):
        with suppress(InstallerError):
            return dockerd.containers(host.local_path(row.socket), timeout_s=ASK_S)
    return docker_data.containers(host, _data_root(host, engine)) if engine and engine.stopped else ()


def _data_root(host: Host, engine: EngineFacts) -> PurePosixPath:
    how = how_started(host, engine)
    words = how.words if how else ()
    said: object = value_of(words, DATA_ROOT)
    if said is None:
        config = path_of(words, ENGINES[engine.name].cmdline.config) or engine.config
        with suppress(InstallerError):
            said = tree_of(host.read(config), config).get("data-root")
    return PurePosixPath(said) if isinstance(said, str) and said.startswith("/") else docker_data.USUAL


def low_level_runtime(host: Host, held: Record) -> PurePosixPath | None:
    """Return the path of the runtime that ours wrap, as the host finds it; None where there is none."""
    words = low_level_words(held.toolkit.rendered) if held.toolkit else ()
    return next((path for path in _places((*words, *USUAL)) if host.kind(path) is Kind.FILE), None)


def handed_over_to(host: Host, layout: Layout, held: Record) -> PurePosixPath | None:
    """Return the runtime that ours hand over to, as the config.toml that lies there says; None if not found.

    An engine may find one elsewhere, by a PATH of its own.
    """
    if held.toolkit is None or held.cdi is not None:
        return None
    words = low_level_words(held.toolkit.rendered)
    with suppress(InstallerError):  # what cannot be parsed is told by the plan
        file = host.read(layout.config)
        words = low_level_words(text_of(file, layout.config)) if file else words
    return next((path for path in _places(words or USUAL) if can_be_started(host, path)), None)


def can_be_started(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a program stands at ``path``, or a link leads to one: a file, executable, not empty."""
    return is_file(host, path) and is_program(host, path) and size_of(host, path) > 0


def _places(words: Collection[str]) -> Iterator[PurePosixPath]:
    for word in words:
        yield from (PurePosixPath(word),) if word.startswith("/") else (place / word for place in PATH)
