"""The containers that run on our runtimes, whichever engine started them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.engines.crio_effect import STATE as CRIO_STATE
from installer.decide.engines.model import OUR_BINARIES
from installer.decide.errors import InstallerError
from installer.decide.facts import Container, EngineFacts
from installer.decide.inode import Kind
from installer.decide.layout import Layout
from installer.decide.rows import Holdings
from installer.decide.toolkit_config import low_level_words
from installer.host import dockerd
from installer.host.containers import STATES, of_crio, of_shims
from installer.host.files import Host

PATH: Final = tuple(
    PurePosixPath(path)
    for path in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
)
ASK_S: Final = 3.0


def live_containers(
    host: Host,
    layout: Layout,
    held: Holdings,
    engines: Collection[EngineFacts],
    *,
    restarts: bool = True,
) -> tuple[Container, ...]:
    """Return the containers that were started by the runtimes of this install-dir and are not removed yet.

    An engine that has been given back may still run some: a forced undo leaves them links.
    Where nobody ``restarts`` CRI-O, a container that asked for nothing needs what is its default now.
    """
    if held.toolkit is None:
        return ()
    binaries = frozenset(layout.toolkit / name for name in OUR_BINARIES)
    states = STATES | {
        engine.state: engine.name if ENGINES[engine.name].found_by else "containerd"
        for engine in engines
        if engine.state is not None and engine.name != "crio"
    }
    found = [*of_shims(host, states, binaries)]
    for row in held.engines:
        if row.name == "crio":
            engine = next((engine for engine in engines if engine.name == row.name), None)
            handlers = dict(row.runtimes)
            if engine and engine.serving and engine.serving.default in handlers and not restarts:
                handlers[""] = handlers[engine.serving.default]
            state = (engine and engine.state) or row.state or CRIO_STATE
            found += of_crio(host, state, handlers, binaries)
    return tuple(found)


def known_to_docker(
    host: Host, held: Holdings, live: Sequence[Container]
) -> tuple[tuple[Container, ...], tuple[str, ...]]:
    """Return ``live`` with the names that Docker gives them, and the stopped ones that name our runtimes."""
    row = next((row for row in held.engines if row.name == "docker"), None)
    if row is None:
        return tuple(live), ()
    try:
        found = dockerd.containers(host.here(row.socket), timeout_s=ASK_S)
    except InstallerError:
        return tuple(live), ()
    names = {each.id: each.name for each in found}
    ours = {name for name, _ in row.runtimes}
    idle = tuple(sorted(each.name for each in found if each.runtime in ours and not each.running))
    return tuple(replace(each, name=names.get(each.id, each.name)) for each in live), idle


def low_level_runtime(host: Host, held: Holdings) -> PurePosixPath | None:
    """Return the path of the runtime that ours wrap, as the host finds it; None where there is none."""
    words = low_level_words(held.toolkit.rendered) if held.toolkit else ()
    for word in (*words, "runc", "crun"):
        paths = (PurePosixPath(word),) if word.startswith("/") else (place / word for place in PATH)
        for path in paths:
            if host.kind(path) is Kind.FILE:
                return path
    return None
