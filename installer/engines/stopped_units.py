"""The units that systemd stops along with that of an engine, and the containers that would end with them."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from installer.engines import ENGINES
from installer.engines.config_edits import tree_of
from installer.engines.docker import api as dockerd
from installer.engines.docker.next_start import explain_failing_start
from installer.engines.startup import KILLING, path_of
from installer.errors import InstallerError, Option, Remedy
from installer.host import systemd
from installer.host.files import Host
from installer.host.processes import PROC, list_words_in_unit_of, monitors_in_unit_of, unit_of, words_of
from installer.host.sockets import list_listening
from installer.model.engine import EngineState
from installer.model.facts import count, list_some
from installer.model.files import Kind

ASK_S: Final = 5.0
MOST_UNITS: Final = 64  # of those that are looked at; anybody's unit may name another
LIVE_RESTORE: Final = "live-restore"
TASKS: Final = "io.containerd.runtime.v2.task"
DOCKER: Final = next(spec for spec in ENGINES.values() if spec.live_restore_key)
# Programs that stay in the foreground for a container and end it when they are stopped, by these words.
CLIENTS: Final = frozenset({"docker", "docker-compose", "nerdctl", "podman", "ctr"})
PODMAN: Final = "podman"  # its containers have no shim
HOLDING: Final = frozenset({"run", "start", "up"})
# The words by which an engine's client ends containers, and those of its other things (images, networks).
ENDING: Final = frozenset({"rm", "remove", "delete", "del", "stop", "stopp", "rmp", "kill", "down"})
SCRIPT_BYTES: Final = 64 << 10
OTHER_THINGS: Final = frozenset((
    "builder", "buildx", "content", "image", "images", "lease", "leases", "namespace", "namespaces",
    "network", "ns", "plugins", "snapshot", "snapshots", "system", "volume",
))  # fmt: skip
STOPPING_CLIENTS: Final = CLIENTS | {"crictl"}
COMMANDS: Final = re.compile(r"[;&|()`\n]")  # what separates the commands of a shell
QUOTES: Final = re.compile(r"""["'{}$]""")


class StoppedUnit(Struct, frozen=True):
    """A unit that systemd stops along, because of a ``setting`` of its own that names ``cause``."""

    name: str
    setting: str
    cause: str
    process: Path | None  # its main process, a directory of the host's /proc
    kill_mode: str
    stop_commands: tuple[tuple[str, tuple[str, ...]], ...] = ()  # each with its setting


class Loss(Struct, frozen=True):
    """The containers that end with a unit, in words, and what keeps them alive."""

    containers: str
    remedy: str


def explain_stopped_units(host: Host, engine: EngineState, unit: systemd.Unit) -> Iterator[InstallerError]:
    """Yield why an engine is not restarted: a unit that systemd stops with it ends containers.

    So does the restart of an engine that is down: its containers, and Docker's, live on without it.
    """
    for stopped in find_stopped_units(host, engine.unit, unit):
        loss = _find_loss(host, engine, stopped)
        if loss is None:
            continue
        setting = f"{stopped.setting}={stopped.cause}"
        yield InstallerError(
            f"restart {engine.title} (systemd stops with it {stopped.name}, which has {setting}, and that "
            f"ends {loss.containers})",
            remedy=Remedy(
                f"{loss.remedy}, take {setting} out of {stopped.name}, or restart {engine.unit} at a time of "
                "your choice after a run with ",
                Option("restart-mode", "none"),
            ),
            code="restart-kills-containers",
        )


def find_stopped_units(host: Host, name: str, unit: systemd.Unit) -> Iterator[StoppedUnit]:
    """Yield the units that run and that systemd stops with one, directly or because another stops."""
    seen = {name}
    waiting = deque((dependent, setting, name) for dependent, setting in unit.stops_along)
    while waiting and len(seen) <= MOST_UNITS:
        dependent, setting, cause = waiting.popleft()
        if dependent in seen:
            continue
        seen.add(dependent)
        state = systemd.look_at_unit(host, dependent)
        if state.active not in {"active", "activating", "reloading"}:
            continue  # systemd passes a stop on through none that is down
        # In a pid namespace of our own the number may be that of another process.
        is_seen = state.main_pid and unit_of(state.main_pid, host.local_path(PROC)) == dependent
        process = host.local_path(PROC) / str(state.main_pid) if is_seen else None
        yield StoppedUnit(
            dependent, setting, cause, process, state.start.kill_mode, stop_commands=state.stop_commands
        )
        waiting.extend((other, why, dependent) for other, why in state.stops_along)


def _find_loss(host: Host, engine: EngineState, stopped: StoppedUnit) -> Loss | None:
    """Return which containers a stop of a unit ends; None where it ends none."""
    words = words_of(stopped.process) if stopped.process else ()
    program = PurePosixPath(words[0]).name if words else ""
    if program == DOCKER.process or stopped.name == DOCKER.unit:
        return _find_loss_of_docker(host, engine, stopped, words)
    if stopped.process is not None and stopped.kill_mode in KILLING:
        monitors = monitors_in_unit_of(stopped.process)
        if monitors:
            shims = f"{count(monitors, 'shim')} of live containers"
            return Loss(f"{shims} (KillMode={stopped.kill_mode})", f"set KillMode=process in {stopped.name}")
    ending = next(_find_ending_commands(host, stopped), None)
    if ending is not None:
        setting, client, verb = ending
        namespace = DOCKER.namespace if client.startswith("docker") else ""
        if client == PODMAN or next(_list_tasks(host, engine, namespace), None) is not None:
            return Loss(f"the container of its {setting} ({client} {verb})", f"stop {stopped.name} first")
    # A shell or a wrapper may have started the client.
    for line in list_words_in_unit_of(stopped.process) if stopped.process else ():
        client = PurePosixPath("".join(line[:1])).name
        verb = next((word for word in line[1:] if word in HOLDING), "")
        if client in CLIENTS and verb:
            return Loss(f"the container of its {client} {verb}", "stop it first")
    return None


def _find_ending_commands(host: Host, stopped: StoppedUnit) -> Iterator[tuple[str, str, str]]:
    """Yield the commands by which the stop of a unit ends containers: the setting, the client, its verb."""
    for setting, words in stopped.stop_commands:
        texts = [" ".join(words)]
        texts += _read_scripts(host, words)
        for text in texts:
            for command in COMMANDS.split(text):
                found = _find_ending_client(QUOTES.sub(" ", command).split())
                if found is not None:
                    yield setting, *found


def _read_scripts(host: Host, words: Sequence[str]) -> Iterator[str]:
    """Yield the scripts among the words of a command."""
    for word in words:
        path = PurePosixPath(word)
        if not path.is_absolute() or host.kind(path) is not Kind.FILE or host.size(path) > SCRIPT_BYTES:
            continue
        with suppress(InstallerError):
            file = host.read(path)
            if file is not None and file.content.startswith(b"#!"):
                lines = file.content.decode(errors="replace").splitlines()
                yield "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def _find_ending_client(words: Sequence[str]) -> tuple[str, str] | None:
    """Return the client and the verb of a command that ends containers; None for any other command."""
    names = [PurePosixPath(word).name for word in words]
    client = next((name for name in names if name in STOPPING_CLIENTS), None)
    if client is None:
        return None
    for argument in words[names.index(client) + 1 :]:
        if argument in OTHER_THINGS:
            return None
        if argument in ENDING:
            return client, argument
    return None


def _find_loss_of_docker(
    host: Host, engine: EngineState, stopped: StoppedUnit, words: Sequence[str]
) -> Loss | None:
    """Return which containers of a dockerd end with it; where it does not tell, its shims do."""
    config = path_of(words, DOCKER.cmdline.config) or DOCKER.config
    failure = explain_failing_start(host, EngineState.usual(DOCKER), words, config)
    if failure:  # it is stopped, and does not start again
        return Loss(f"Docker itself, which cannot {failure}", f"correct {config}")
    tree = tree_of(host.read(config), config)
    # A dockerd that is started without live-restore ends what it finds running.
    goes_on = "--live-restore" in words or tree.get(LIVE_RESTORE) is True
    listening = list_listening(stopped.process) if stopped.process else frozenset()
    sockets = [PurePosixPath(path) for path in sorted(listening, key=len)]
    sockets.sort(key=lambda path: path.name != DOCKER.socket.name)
    remedy = f'set "live-restore": true in its daemon.json and run systemctl reload {stopped.name}'
    for socket in sockets or [DOCKER.socket]:
        here = host.local_path(socket)
        with suppress(InstallerError):
            if goes_on and dockerd.ask_info(here, timeout_s=ASK_S).serving.live_restore:
                return None
            names = dockerd.list_running_names(here, timeout_s=ASK_S)
            containers = f"{count(len(names), 'container')}: {list_some(names)}"
            return Loss(containers, remedy) if names else None
    ids = [*_list_tasks(host, engine, DOCKER.namespace)]
    if not ids:
        return None
    containers = f"{count(len(ids), 'container')}, unless it has live-restore, which it does not tell now"
    return Loss(containers, "make it answer")


def _list_tasks(host: Host, engine: EngineState, namespace: str) -> Iterator[str]:
    """Yield the ids of the containers with a shim in a namespace of containerd, "" for all of them."""
    places = {spec.state.usual for spec in ENGINES.values() if spec.has_shims}
    if engine.state is not None:
        places.add(engine.state)
    for place in sorted(places):
        with suppress(InstallerError):
            for name in [namespace] if namespace else host.names(place / TASKS):
                yield from host.names(place / TASKS / name)
