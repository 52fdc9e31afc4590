"""The things that an engine needs of its node: a containerd, a monitor, room, the driver; and the system."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.apis import api_of
from installer.engines.startup import find_place, path_of, read_start, value_of
from installer.errors import Code, InstallerError, Option, Remedy
from installer.host import processes
from installer.host.files import NOEXEC, READ_ONLY, Host, is_full, mount_point_of, text
from installer.host.processes import NotServing, Peer, Silent, Unseen
from installer.host.programs import can_be_started
from installer.model.effective import Runtime
from installer.model.engine import Engine, EngineState
from installer.model.files import DEFAULT_DRIVER_ROOT, DRIVER_LIBRARY_DIRS, PATH, ROOT, Kind
from installer.model.options import AUTO, Options

ASK_S: Final = 3.0
RESTART: Final = "see systemctl status containerd on the node, and start or restart it"
STATE: Final = "where each container has its state"
DATA: Final = "where the files of containers are"
# containerd's plugin "opt" adds this directory to the PATH of containerd.
OPT: Final = PurePosixPath("/opt/containerd/bin")
# By ID in os-release: systems with an image as root, and with engines' configs made of their settings.
IMAGES: Final = {
    "talos": (
        "on Talos the toolkit is a system extension, and runtimes come from the machine config",
        "add both there",
    ),
    "bottlerocket": (
        "Bottlerocket's image for NVIDIA has the toolkit and its runtime, nothing is installed",
        "start this node from that image",
    ),
}
CGROUPS: Final = PurePosixPath("/sys/fs/cgroup")
CONTROLLERS: Final = ("cpu", "devices", "memory", "pids")  # of cgroup v1, those that runc uses everywhere
OS_RELEASES: Final = (PurePosixPath("/etc/os-release"), PurePosixPath("/usr/lib/os-release"))


class Dependencies(Struct, frozen=True):
    """The other programs used by an engine to start containers."""

    containerd: str = ""  # the socket of the containerd that Docker uses
    monitor: str = ""  # the program that will hold a container, "" if none is found


def find_dependencies(
    host: Host, engine: EngineState, toolkit: PurePosixPath, before: Dependencies
) -> Dependencies:
    """Find the programs used by a running engine to start containers.

    Args:
        host: The node.
        engine: An engine that answers.
        toolkit: The directory of our runtimes.
        before: The last result. If no monitor was ever found, the engine may have its own monitor elsewhere.

    Raises:
        InstallerError: The engine could not start a container.
    """
    if engine.state:
        _refuse_unwritable(host, engine, engine.state, STATE)
    for kind in kinds_for(engine.name):
        _refuse_unwritable(host, engine, kind.state.usual, STATE)
    _refuse_unwritable(host, engine, data_of(host, engine, engine.words), DATA)
    _refuse_read_only_cgroups(host, engine)

    starter = engine  # the engine that starts the containers
    socket = containerd_of(host, engine, before.containerd)
    if socket is not None:
        starter = _find_lower_engine(host, engine, socket)

    # A missing program is reported as such, not as a program that the engine does not see.
    binaries = [PurePosixPath(runtime.binary) for runtime in _list_our_runtimes(engine, toolkit)]
    refuse_unseen(starter, (path for path in binaries if host.exists(path)))
    if NOEXEC in mount_options(host, toolkit, engine.pid):
        flaw = f"{toolkit} is mounted {NOEXEC}, so none of its programs starts"
        remedy = f"mount {mount_point_of(host, toolkit, NOEXEC)} with -o remount,exec"
        raise _unable(engine, flaw, remedy, "install-dir-unusable")
    monitor = _find_monitor(host, starter, toolkit, before.monitor)
    return Dependencies(str(socket or ""), str(monitor or ""))


def _find_lower_engine(host: Host, engine: EngineState, socket: PurePosixPath) -> EngineState:
    """Fill in the process of the engine below, which starts the containers of ``engine``.

    Raises:
        InstallerError: The engine below could not start a container.
    """
    lower = ENGINES[engine.kind.lower_engine]
    peer = _ask_lower_engine(host, lower, socket)
    if isinstance(peer, str):
        raise _unable(engine, peer, RESTART, "engine-not-answering")
    if peer is None:
        return replace(engine, unit="", pid=None, exe=None)

    config = path_of(peer.cmdline, lower.cmdline.config) or lower.config
    state = replace(EngineState.usual(lower), config=config)
    _refuse_unwritable(host, engine, data_of(host, state, peer.cmdline), DATA)
    return replace(engine, unit="", pid=peer.pid, exe=PurePosixPath(peer.exe or ""))


def explain_silence(host: Host, engine: EngineState) -> str:
    """Explain why an engine may wait for its containerd in silence; "" if the containerd answers."""
    socket = containerd_of(host, engine)
    if socket is None:
        return ""
    answer = _ask_lower_engine(host, ENGINES[engine.kind.lower_engine], socket)
    return answer if isinstance(answer, str) else ""


def containerd_of(host: Host, engine: EngineState, known: str = "") -> PurePosixPath | None:
    """Find the socket of the containerd used by Docker; None for other engines, and if unknown.

    The order is dockerd's: the given socket, else dockerd's own containerd, else the containerd of the node.
    ``known`` is the last result.
    """
    lower_socket = engine.kind.lower_socket
    if lower_socket is None:
        return None
    named = find_place(host, lower_socket, engine.words, engine.config)
    if named is not None:
        # A containerd that has ended removes its socket: if its directory is there, it can be seen from here.
        return named if host.exists(named.parent) else None
    # The containerd that dockerd starts by itself.
    exec_root = value_of(engine.words, ("--exec-root",)) or "/var/run/docker"
    own_socket = PurePosixPath(exec_root, "containerd/containerd.sock")
    for socket in (own_socket, lower_socket.usual):
        if host.exists(socket):
            return socket
    return PurePosixPath(known) if known else None


def _ask_lower_engine(host: Host, lower: Engine, socket: PurePosixPath) -> Peer | str | None:
    """Return the answering process, None for an unseen process, or why it could not start a container."""
    greeting = api_of(lower).greeting
    try:
        peer = processes.peer_of(host.local_path(socket), greeting=greeting, timeout_s=ASK_S)
    except InstallerError:  # the socket cannot be reached from here, which tells nothing about the engine
        return None
    match peer:
        case NotServing():
            return f"its {lower.title} does not run: nothing answers on {socket}"
        case Silent(reason):
            return f"its {lower.title} hangs: {reason} on {socket}"
        case Unseen():
            return None
        case Peer():
            return peer


def _refuse_unwritable(
    host: Host, engine: EngineState, place: PurePosixPath | None, description: str
) -> None:
    """Raise if a directory of an engine is full or mounted read-only."""
    if place is None or not host.exists(place):
        return
    if is_full(host, place):
        raise _unable(engine, f"{place}, {description}, is full", "make room there", "no-space")
    if READ_ONLY in mount_options(host, place, engine.pid):
        flaw = f"{place}, {description}, is mounted {READ_ONLY}"
        remedy = "see dmesg on the node, and mount it with -o remount,rw once the disk is well"
        raise _unable(engine, flaw, remedy, "engine-not-proven")


def _refuse_read_only_cgroups(host: Host, engine: EngineState) -> None:
    """Raise if an engine could not make the cgroup of a container.

    Only the mounts of the engine's process count: ours may be read-only where the engine's are not.
    """
    if engine.pid is None:
        return
    places = [CGROUPS]
    if not host.exists(CGROUPS / "cgroup.controllers"):  # cgroup v1: a mount for each controller
        places = [CGROUPS / controller for controller in CONTROLLERS]
    for place in places:
        if host.exists(place) and READ_ONLY in mount_options(host, place, engine.pid):
            flaw = f"{place}, where cgroups of containers are made, is mounted {READ_ONLY}"
            remedy = f"mount it with: mount -o remount,rw {place}"
            raise _unable(engine, flaw, remedy, "engine-not-proven")


def _find_monitor(
    host: Host, engine: EngineState, toolkit: PurePosixPath, before: str
) -> PurePosixPath | None:
    """Find the monitor of the next container: of the runtime's settings, else in the PATH.

    Args:
        host: The node.
        engine: The engine that starts containers.
        toolkit: The directory of our runtimes.
        before: The last result; "" if the monitor was never found in the PATH.

    Raises:
        InstallerError: The monitor of the default runtime, or of a runtime of ours, is missing.
    """
    monitor: PurePosixPath | None = None
    directories = _list_program_directories(host, engine)
    default = engine.served.handlers.get(engine.served.default)
    for runtime in (default or Runtime(), *_list_our_runtimes(engine, toolkit)):
        named = runtime.monitor or _read_monitor(engine.kind, runtime)
        candidates = [PurePosixPath(named)]
        if not named:
            candidates = [directory / engine.kind.monitor_program for directory in directories]
        program = next((path for path in candidates if can_be_started(host, path)), None)
        if program is None:
            missing = named or before
            if not missing:
                return None
            flaw = f"{missing}, which holds each container, is missing or not executable"
            raise _unable(engine, flaw, "install it again", "engine-not-proven")
        monitor = monitor or program
    return monitor


def _list_program_directories(host: Host, engine: EngineState) -> list[PurePosixPath]:
    """List the directories in which an engine looks for a program."""
    started = read_start(host, engine) if engine.pid else None
    directories = list(started.paths if started else PATH)
    if engine.exe:
        directories.append(engine.exe.parent)
    directories.append(OPT)
    return directories


def _read_monitor(kind: Engine, runtime: Runtime) -> str:
    """Return the path of the monitor in the settings of a runtime; "" for settings without the path."""
    settings = {name.lower().replace("_", ""): value for name, value in runtime.table.items()}
    for key in kind.monitor_keys:
        path = settings.get(key)
        if isinstance(path, str) and path.startswith("/"):
            return path
    return ""


def _list_our_runtimes(engine: EngineState, toolkit: PurePosixPath) -> tuple[Runtime, ...]:
    """List the runtimes of the toolkit served by an engine."""
    handlers = engine.served.handlers.values()
    return tuple(runtime for runtime in handlers if runtime.binary.startswith(f"{toolkit}/"))


def _unable(engine: EngineState, flaw: str, remedy: str, code: Code) -> InstallerError:
    """Make the error of an engine unable to start a container."""
    return InstallerError(f"start containers with {engine.title} ({flaw})", remedy=remedy, code=code)


def refuse_unseen(engine: EngineState, binaries: Iterable[PurePosixPath]) -> None:
    """Refuse programs invisible to an engine: the engine would complain only at a container's start.

    Raises:
        InstallerError: The engine has other mounts than the host.
    """
    if engine.pid is None:
        return
    for path in binaries:
        try:
            root = Host.under(PurePosixPath(f"/proc/{engine.pid}/root"))
            is_seen = not root.names(ROOT) or root.kind(path) is Kind.FILE
        except InstallerError:  # without CAP_SYS_PTRACE another process's root cannot be read
            return
        if not is_seen:
            problem = f"configure {engine.title} (pid {engine.pid} does not see {path}: it has other mounts)"
            remedy = Remedy("mount the host's own directory at ", Option("install-dir"), " for the engine")
            raise InstallerError(problem, remedy=remedy, code="toolkit-not-visible")


def kinds_for(name: str) -> tuple[Engine, ...]:
    """Return an engine, followed by the engine that runs its containers, if any."""
    kind = ENGINES[name]
    if not kind.lower_engine:
        return (kind,)
    return (kind, ENGINES[kind.lower_engine])


def data_of(host: Host, engine: EngineState, words: tuple[str, ...]) -> PurePosixPath | None:
    """Return the directory of the containers' files of an engine started with ``words``."""
    data = engine.kind.data
    if data is None:
        return None
    return find_place(host, data, words, engine.config) or data.usual


def list_crowded(host: Host, names: Iterable[str]) -> Iterator[PurePosixPath]:
    """Yield the directories for the state of some engines' containers without room for another container."""
    places: dict[PurePosixPath, None] = {}
    for name in names:
        for kind in kinds_for(name):
            places[kind.state.usual] = None
    for place in places:
        if is_full(host, place):
            yield place


def mount_options(host: Host, path: PurePosixPath, pid: int | None = None) -> tuple[str, ...]:
    """Return the mount options of the file system of ``path`` for a process; they may differ from ours."""
    with suppress(InstallerError):
        if pid is not None:
            return Host.under(PurePosixPath(f"/proc/{pid}/root")).mounted(path)
    with suppress(InstallerError):
        return host.mounted(path)
    return ()


def is_suse(host: Host) -> bool:
    """Tell whether the host is of the SUSE family."""
    return "suse" in read_os_release(host).get("ID_LIKE", "")


def without_cri(host: Host, beside: Collection[str]) -> str:
    """Return why a containerd without CRI is left alone; ``beside`` has the other running engines."""
    reason = "its CRI is switched off"
    image = IMAGES.get(read_os_release(host).get("ID", ""))
    if image:
        return f"{reason}: {image[0]}"
    for name in beside:
        if ENGINES[name].lower_engine:
            return f"{reason}, it serves {ENGINES[name].title}"
    return reason


def served_by_image(host: Host) -> Iterator[InstallerError]:
    """Yield a refusal of the install on a system with a toolkit of its own."""
    image = IMAGES.get(read_os_release(host).get("ID", ""))
    if image is not None:
        yield InstallerError(f"install on this node ({image[0]})", remedy=image[1], code="not-supported")


def read_os_release(host: Host) -> dict[str, str]:
    """Parse the host's os-release(5), from the first readable path of two."""
    texts = (text(host, path) for path in OS_RELEASES)
    content = next(filter(None, texts), "")
    fields: dict[str, str] = {}
    for line in content.splitlines():
        name, _, value = line.partition("=")
        fields[name] = value.strip("\"'")
    return fields


def driver_root(host: Host, options: Options) -> tuple[str, tuple[str, ...]]:
    """Return where the host finds the driver, and a note if that is missing, or the host itself.

    A driver in a container goes first, as for the GPU Operator. On a node without any driver the container
    may come later.
    """
    usual = str(DEFAULT_DRIVER_ROOT)
    root = options.driver_root
    if root == AUTO:
        root = usual
    if root and root != usual and host.kind(PurePosixPath(root)) is not Kind.DIRECTORY:
        remedy = "correct --driver-root, unless the driver comes there later"
        return root, (f"there is no directory {root}: {remedy}",)
    if root != usual or host.names(DEFAULT_DRIVER_ROOT):
        return root, ()

    for directory in DRIVER_LIBRARY_DIRS:
        if any(name.startswith("libnvidia-ml.so.") for name in host.names(directory)):
            finding = f"{usual} is empty and {directory} holds the driver"
            if options.driver_root == AUTO:
                return "/", (f"{finding}: the toolkit looks for it in /",)
            return usual, (f"{finding}: consider --driver-root /",)
    return usual, ()
