"""The units that systemd stops along with an engine's unit, and the containers that would end with them."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from installer.engines import ENGINES
from installer.engines.apis import api_of
from installer.engines.config_texts import tree_of
from installer.engines.startup import KILLING, find_place, path_of, predict_next_start
from installer.errors import InstallerError, Option, Remedy
from installer.host import systemd
from installer.host.files import Host
from installer.host.processes import (
    PROC,
    TOO_MANY,
    UnfinishedError,
    list_words_in_unit_of,
    monitors_in_unit_of,
    unit_of,
    words_of,
)
from installer.host.sockets import list_listening
from installer.model.effective import EffectiveConfig
from installer.model.engine import Engine, EngineState, RestartedUnit
from installer.model.facts import count, list_some
from installer.model.files import Kind

ASK_S: Final = 5.0
MOST_UNITS: Final = 64  # anybody's unit may name another unit
TASKS: Final = "io.containerd.runtime.v2.task"
# Engines whose containers end with them, unless a setting keeps the containers.
ENDING_ENGINES: Final = tuple(kind for kind in ENGINES.values() if kind.live_restore_key)
# Programs that stay in the foreground for a container and end the container when they are stopped.
CLIENTS: Final = frozenset({"docker", "docker-compose", "nerdctl", "podman", "ctr"})
PODMAN: Final = "podman"  # its containers have no shim
HOLDING: Final = frozenset({"run", "start", "up"})  # the verbs with which they stay
# The verbs by which an engine's client ends containers, and its words for other things (images, networks).
ENDING: Final = frozenset({"rm", "remove", "delete", "del", "stop", "stopp", "rmp", "kill", "down"})
SCRIPT_BYTES: Final = 64 << 10
OTHER_THINGS: Final = frozenset((
    "builder", "buildx", "content", "image", "images", "lease", "leases", "namespace", "namespaces",
    "network", "ns", "plugins", "snapshot", "snapshots", "system", "volume",
))  # fmt: skip
STOPPING_CLIENTS: Final = CLIENTS | {"crictl"}
USERNS: Final = re.compile(r"\d+\.\d+")  # the ids of a remapped user and group
COMMANDS: Final = re.compile(r"[;&|()`\n]")  # the separators of a shell's commands
QUOTES: Final = re.compile(r"""["'{}$]""")


class StoppedUnit(Struct, frozen=True):
    """A unit stopped along by systemd: its ``setting`` names the unit ``cause``."""

    name: str
    setting: str
    cause: str
    is_active: bool  # not only starting or crashing
    process: Path | None  # its main process, a directory of the host's /proc
    start: systemd.UnitStart
    stop_commands: tuple[tuple[str, tuple[str, ...]], ...] = ()  # each with its setting

    @property
    def kill_mode(self) -> str:
        """The processes that systemd kills at a stop (systemd.kill(5))."""
        return self.start.kill_mode


class Loss(Struct, frozen=True):
    """The containers ended by the stop of a unit, in words, and the act that keeps them alive."""

    containers: str
    remedy: str


def explain_stopped_units(
    host: Host, engine: EngineState, stopped_units: Iterable[StoppedUnit]
) -> Iterator[InstallerError]:
    """Yield why an engine is not restarted: a unit that systemd stops with the engine's ends containers.

    A stopped engine's restart does the same: its containers, and Docker's, live on without the engine.
    """
    for stopped in stopped_units:
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


def find_restarted_units(stopped_units: Iterable[StoppedUnit]) -> Iterator[StoppedUnit]:
    """Yield the active units that systemd starts again after it has stopped them along with a unit."""
    for stopped in stopped_units:
        if stopped.is_active and stopped.setting != systemd.ONLY_STOPS:
            yield stopped


def list_restarted_units(host: Host, stopped_units: Iterable[StoppedUnit]) -> tuple[RestartedUnit, ...]:
    """List the active units that systemd restarts along, with what keeps their containers."""
    units = []
    for stopped in find_restarted_units(stopped_units):
        setting = f"{stopped.setting}={stopped.cause}"
        units.append(RestartedUnit(stopped.name, setting, _find_live_restore_key(host, stopped)))
    return tuple(units)


def _find_live_restore_key(host: Host, stopped: StoppedUnit) -> str:
    """Return the setting in force in an engine that keeps its containers while its unit restarts, or ""."""
    kind = _find_engine(stopped, _read_words(stopped))
    if kind is None:
        return ""
    for socket in _list_sockets(kind, stopped):
        with suppress(InstallerError):
            answer = api_of(kind).ask(host.local_path(socket), timeout_s=ASK_S)
            return kind.live_restore_key if answer.serving.live_restore else ""
    return ""


def find_stopped_units(host: Host, name: str, unit: systemd.Unit) -> Iterator[StoppedUnit]:
    """Yield the running units stopped by systemd with a unit, directly or because another unit stops."""
    seen = {name}
    waiting = deque((dependent, setting, name) for dependent, setting in unit.stops_along)
    while waiting and len(seen) <= MOST_UNITS:
        dependent, setting, cause = waiting.popleft()
        if dependent in seen:
            continue
        seen.add(dependent)
        state = systemd.look_at_unit(host, dependent)
        if state.active not in {"active", "activating", "reloading"}:
            continue  # a unit that is down passes no stop on
        # In a pid namespace of our own the number may be that of another process.
        process: Path | None = None
        if state.main_pid and unit_of(state.main_pid, host.local_path(PROC)) == dependent:
            process = host.local_path(PROC) / str(state.main_pid)
        yield StoppedUnit(
            name=dependent,
            setting=setting,
            cause=cause,
            is_active=state.active != "activating",
            process=process,
            start=state.start,
            stop_commands=state.stop_commands,
        )
        waiting.extend((other, other_setting, dependent) for other, other_setting in state.stops_along)


def _find_loss(host: Host, engine: EngineState, stopped: StoppedUnit) -> Loss | None:
    """Find the containers ended by the stop of a unit; None for no container."""
    words = _read_words(stopped)
    kind = _find_engine(stopped, words)
    if kind is not None:
        return _find_loss_of_engine(host, engine, kind, stopped, words)
    return (
        _find_loss_by_kill(stopped)
        or _find_loss_by_commands(host, engine, stopped)
        or _find_loss_of_clients(stopped)
    )


def _read_words(stopped: StoppedUnit) -> Sequence[str]:
    """Return the command line of a unit's main process; () if unknown."""
    if stopped.process is None:
        return ()
    return words_of(stopped.process)


def _find_engine(stopped: StoppedUnit, words: Sequence[str]) -> Engine | None:
    """Return the engine of a unit whose containers end with it; None for any other unit.

    ``words`` is the command line of the unit's main process.
    """
    program = PurePosixPath(words[0]).name if words else ""
    for kind in ENDING_ENGINES:
        if program == kind.process or stopped.name == kind.unit:
            return kind
    return None


def _find_loss_by_kill(stopped: StoppedUnit) -> Loss | None:
    """Find the containers with monitors in a unit stopped by systemd by killing all processes."""
    if stopped.process is None or stopped.kill_mode not in KILLING:
        return None
    keep = f"set KillMode=process in {stopped.name}"
    try:
        monitors = monitors_in_unit_of(stopped.process)
    except UnfinishedError:
        return Loss(f"perhaps live containers (KillMode={stopped.kill_mode}; {TOO_MANY})", keep)
    if not monitors:
        return None
    shims = f"{count(monitors, 'shim')} of live containers"
    return Loss(f"{shims} (KillMode={stopped.kill_mode})", keep)


def _find_loss_by_commands(host: Host, engine: EngineState, stopped: StoppedUnit) -> Loss | None:
    """Find the containers ended by the stop commands of a unit."""
    ending = next(_find_ending_commands(host, stopped), None)
    if ending is None:
        return None
    setting, client, verb = ending
    namespace = ""
    for kind in ENDING_ENGINES:
        if client.startswith(kind.name):
            namespace = kind.namespace
    if client != PODMAN and next(_list_tasks(host, engine, namespace), None) is None:
        return None
    return Loss(f"the container of its {setting} ({client} {verb})", f"stop {stopped.name} first")


def _find_loss_of_clients(stopped: StoppedUnit) -> Loss | None:
    """Return the container of a client in a unit; a shell or a wrapper may have started the client."""
    if stopped.process is None:
        return None
    try:
        for line in list_words_in_unit_of(stopped.process):
            client = PurePosixPath("".join(line[:1])).name
            verb = next((word for word in line[1:] if word in HOLDING), "")
            if client in CLIENTS and verb:
                return Loss(f"the container of its {client} {verb}", "stop it first")
    except UnfinishedError:
        return Loss(f"perhaps the container of a client in it ({TOO_MANY})", f"stop {stopped.name} first")
    return None


def _find_ending_commands(host: Host, stopped: StoppedUnit) -> Iterator[tuple[str, str, str]]:
    """Yield the stop commands of a unit that end containers: the setting, the client, its verb."""
    for setting, words in stopped.stop_commands:
        texts = [" ".join(words)]
        texts += _read_scripts(host, words)
        for text in texts:
            for command in COMMANDS.split(text):
                ending = _find_ending_client(QUOTES.sub(" ", command).split())
                if ending is not None:
                    client, verb = ending
                    yield setting, client, verb


def _read_scripts(host: Host, words: Sequence[str]) -> Iterator[str]:
    """Yield the scripts among the words of a command."""
    for word in words:
        path = PurePosixPath(word)
        if not path.is_absolute() or host.kind(path) is not Kind.FILE or host.size(path) > SCRIPT_BYTES:
            continue
        with suppress(InstallerError):
            file = host.read(path)
            if file is not None and file.content.startswith(b"#!"):
                lines = []
                for line in file.content.decode(errors="replace").splitlines():
                    if not line.lstrip().startswith("#"):
                        lines.append(line)
                yield "\n".join(lines)


def _find_ending_client(words: Sequence[str]) -> tuple[str, str] | None:
    """Return the client and the verb of a container-ending command; None for any other command."""
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


def _find_loss_of_engine(
    host: Host, engine: EngineState, kind: Engine, stopped: StoppedUnit, words: Sequence[str]
) -> Loss | None:
    """Find the containers that end with an engine, by the engine's own answer, or else by shims.

    Args:
        host: The node.
        engine: The engine to be restarted.
        kind: The other engine, with a unit stopped along by systemd: dockerd.
        stopped: The unit of ``kind``.
        words: The command line of ``kind``; () if unknown.
    """
    later = predict_next_start(host, EngineState.usual(kind), stopped.start)
    if later is not None:
        words = (later.program, *later.words)
    config = path_of(words, kind.cmdline.config) or kind.config
    failure = api_of(kind).explain_failing_start(host, EngineState.usual(kind), words, config)
    if failure is not None:  # the engine is stopped, and does not start again
        return Loss(f"{kind.title} itself, which cannot {failure.reason}", failure.remedy)
    tree = tree_of(host.read(config), config)

    key = kind.live_restore_key
    remedy = f'set "{key}": true in its {kind.config.name} and run systemctl reload {stopped.name}'
    # A dockerd that is started without the setting ends the containers that it finds running.
    is_restored = f"--{key}" in words or tree.get(key) is True
    for socket in _list_sockets(kind, stopped):
        local_socket = host.local_path(socket)
        with suppress(InstallerError):
            serving = api_of(kind).ask(local_socket, timeout_s=ASK_S).serving
            move = _describe_moved_data(host, kind, serving, words, config)
            if is_restored and serving.live_restore and not move:
                return None
            names = api_of(kind).list_running_names(local_socket, timeout_s=ASK_S)
            if not names:
                return None
            containers = f"{count(len(names), 'container')}: {list_some(names)}"
            if move:
                remedy = f"restart {stopped.name} at a time of your choice"
                return Loss(f"{containers} ({move})", remedy)
            return Loss(containers, remedy)

    ids = list(_list_tasks(host, engine, kind.namespace))
    if not ids:
        return None
    containers = f"{count(len(ids), 'container')}, unless it has {key}, which it does not tell now"
    return Loss(containers, "make it answer")


def _describe_moved_data(
    host: Host, kind: Engine, serving: EffectiveConfig, words: Sequence[str], config: PurePosixPath
) -> str:
    """Describe how the next start of an engine moves its data, without which it finds no container; or "".

    Args:
        host: The node.
        kind: The engine: Docker.
        serving: The config in force.
        words: The command line of the next start.
        config: The config of the next start.
    """
    in_force = serving.settings.get("data-root")
    if kind.data is None or not isinstance(in_force, str):
        return ""
    present = PurePosixPath(in_force)
    if USERNS.fullmatch(present.name):  # dockerd with userns-remap tells a directory below its data-root
        present = present.parent
    wanted = find_place(host, kind.data, words, config) or kind.data.usual
    if host.local_path(wanted) == host.local_path(present):
        return ""
    return f"its next start has the data-root {wanted}, and it runs with {present}"


def _list_sockets(kind: Engine, stopped: StoppedUnit) -> list[PurePosixPath]:
    """Return the sockets of a unit's main process, the usual name first; else the usual socket."""
    if stopped.process is None:
        return [kind.socket]
    sockets = [PurePosixPath(path) for path in sorted(list_listening(stopped.process), key=len)]
    sockets.sort(key=lambda path: path.name != kind.socket.name)
    return sockets or [kind.socket]


def _list_tasks(host: Host, engine: EngineState, namespace: str) -> Iterator[str]:
    """Yield the ids of the containers with a shim in a namespace of containerd, "" for all of them."""
    places = {kind.state.usual for kind in ENGINES.values() if kind.has_shims}
    if engine.state is not None:
        places.add(engine.state)
    for place in sorted(places):
        with suppress(InstallerError):
            for name in [namespace] if namespace else host.names(place / TASKS):
                yield from host.names(place / TASKS / name)
