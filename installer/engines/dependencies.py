"""What a node gives its engines: a containerd, what holds a container, room, the driver; and what it is."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.engines import CONTAINERD, ENGINES
from installer.engines.startup import find_place, path_of, read_start, value_of
from installer.errors import Code, InstallerError, Option, Remedy
from installer.host import processes
from installer.host.files import NOEXEC, READ_ONLY, Host, is_full, mount_point_of, text
from installer.host.processes import NotServing, Peer, Silent, Unseen
from installer.host.programs import can_be_started
from installer.model.engine import Engine, EngineState, Runtime
from installer.model.files import DEFAULT_DRIVER_ROOT, DRIVER_LIBRARY_DIRS, PATH, ROOT, Kind
from installer.model.options import AUTO, Options

ASK_S: Final = 3.0
RESTART: Final = "see systemctl status containerd on the node, and start or restart it"
STATE, DATA = "where each container has its state", "where the files of containers are"
# Where containerd looks as well: its plugin "opt" has it added to its own PATH.
OPT: Final = PurePosixPath("/opt/containerd/bin")
# By ID in os-release: systems whose root is an image and whose engines' configs are made of their settings.
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
OS_RELEASES: Final = (PurePosixPath("/etc/os-release"), PurePosixPath("/usr/lib/os-release"))


class Dependencies(Struct, frozen=True):
    """What an engine starts containers with."""

    containerd: str = ""  # the socket of the one that Docker uses
    monitor: str = ""  # the program that is to hold a container, "" where none is found


def find_dependencies(
    host: Host, engine: EngineState, toolkit: PurePosixPath, before: Dependencies
) -> Dependencies:
    """Return what an engine that answers starts containers with; raise where it could start none.

    Where no monitor was ever found an engine may have its own, in a place that is not known here.
    """
    for place in (
        *((engine.state,) if engine.state else ()),
        *(spec.state.usual for spec in specs_for(engine.name)),
    ):
        _refuse_unwritable(host, engine, place, STATE)
    _refuse_unwritable(host, engine, data_of(host, engine, engine.words), DATA)
    socket, starter = containerd_of(host, engine, before.containerd), engine
    if socket is not None:
        peer = _ask_containerd(host, socket)
        if isinstance(peer, str):
            raise _unable(engine, peer, RESTART, "engine-not-answering")
        exe = PurePosixPath(peer.exe or "") if peer else None
        starter = replace(engine, unit="", pid=peer.pid if peer else None, exe=exe)
        if peer is not None:
            config = path_of(peer.cmdline, CONTAINERD.cmdline.config) or CONTAINERD.config
            below = replace(EngineState.usual(CONTAINERD), config=config)
            _refuse_unwritable(host, engine, data_of(host, below, peer.cmdline), DATA)
    binaries = (PurePosixPath(each.binary) for each in _ours(engine, toolkit))
    # One that does not exist at all is reported as such, and not as a matter of the engine's root.
    refuse_unseen(starter, (path for path in binaries if host.exists(path)))
    if NOEXEC in mount_options(host, toolkit, engine.pid):
        flaw = f"{toolkit} is mounted {NOEXEC}, so none of its programs starts"
        remedy = f"mount {mount_point_of(host, toolkit, NOEXEC)} with -o remount,exec"
        raise _unable(engine, flaw, remedy, "install-dir-unusable")
    monitor = _find_monitor(host, starter, toolkit, before.monitor)
    return Dependencies(str(socket or ""), str(monitor or ""))


def explain_silence(host: Host, engine: EngineState) -> str:
    """Return why an engine may not answer that waits for its containerd; "" where that answers."""
    socket = containerd_of(host, engine)
    answer = _ask_containerd(host, socket) if socket is not None else None
    return answer if isinstance(answer, str) else ""


def containerd_of(host: Host, engine: EngineState, known: str = "") -> PurePosixPath | None:
    """Return where the containerd listens that Docker uses; None for other engines.

    As dockerd itself decides: what it is given, else one that it has started, else one that is there.
    """
    lower_socket = engine.spec.lower_socket
    if lower_socket is None:
        return None
    named = find_place(host, lower_socket, engine.words, engine.config)
    if named is not None:
        # One that has ended takes its socket with it: the directory tells that it would be seen from here.
        return named if host.exists(named.parent) else None
    # Where dockerd has started a containerd by itself.
    exec_root = value_of(engine.words, ("--exec-root",)) or "/var/run/docker"
    own = PurePosixPath(exec_root, "containerd/containerd.sock")
    there = next((each for each in (own, lower_socket.usual) if host.exists(each)), None)
    return there or (PurePosixPath(known) if known else None)


def _ask_containerd(host: Host, socket: PurePosixPath) -> Peer | str | None:
    """Return the containerd that answers, None where it is not seen, or why none could start a container."""
    try:
        peer = processes.peer_of(host.local_path(socket), greeting=processes.HTTP2_PREFACE, timeout_s=ASK_S)
    except InstallerError:  # not to be connected to from here, which says nothing about it
        return None
    match peer:
        case NotServing():
            return f"its containerd does not run: nothing answers on {socket}"
        case Silent(reason):
            return f"its containerd hangs: {reason} on {socket}"
        case Unseen():
            return None
        case Peer():
            return peer


def _refuse_unwritable(host: Host, engine: EngineState, place: PurePosixPath | None, what: str) -> None:
    if place is None or not host.exists(place):
        return
    if is_full(host, place):
        raise _unable(engine, f"{place}, {what}, is full", "make room there", "no-space")
    if READ_ONLY in mount_options(host, place, engine.pid):
        flaw = f"{place}, {what}, is mounted {READ_ONLY}"
        remedy = "see dmesg on the node, and mount it with -o remount,rw once the disk is well"
        raise _unable(engine, flaw, remedy, "engine-not-proven")


def _find_monitor(
    host: Host, engine: EngineState, toolkit: PurePosixPath, before: str
) -> PurePosixPath | None:
    """Return the program that is to hold a container: as its runtime says, else where it is looked for.

    None where it is looked for, and was not found ``before``.

    Raises:
        InstallerError: it is not there for the default runtime, or for one of ours.
    """
    started = read_start(host, engine) if engine.pid else None
    places = (*(started.paths if started else PATH), *((engine.exe.parent,) if engine.exe else ()), OPT)
    program = engine.spec.monitor_program
    keys = engine.spec.monitor_keys
    default, found = engine.served.handlers.get(engine.served.default), None
    for runtime in (default or Runtime(), *_ours(engine, toolkit)):
        options = {name.lower().replace("_", ""): value for name, value in runtime.table.items()}
        paths = (path for key in keys if isinstance(path := options.get(key), str) and path[:1] == "/")
        named = runtime.monitor or next(paths, "")
        candidates = (PurePosixPath(named),) if named else (place / program for place in places)
        there = next((path for path in candidates if can_be_started(host, path)), None)
        if there is None and (named or before):
            flaw = f"{named or before}, which holds each container, is missing or not executable"
            raise _unable(engine, flaw, "install it again", "engine-not-proven")
        if there is None:
            return None
        found = found or there
    return found


def _ours(engine: EngineState, toolkit: PurePosixPath) -> tuple[Runtime, ...]:
    handlers = engine.served.handlers.values()
    return tuple(each for each in handlers if each.binary.startswith(f"{toolkit}/"))


def _unable(engine: EngineState, flaw: str, remedy: str, code: Code) -> InstallerError:
    return InstallerError(f"start containers with {engine.title} ({flaw})", remedy=remedy, code=code)


def refuse_unseen(engine: EngineState, binaries: Iterable[PurePosixPath]) -> None:
    """Raise where the engine would not find our runtimes: no error comes before a container is started."""
    if engine.pid is None:
        return
    for path in binaries:
        try:
            root = Host.under(PurePosixPath(f"/proc/{engine.pid}/root"))
            there = not root.names(ROOT) or root.kind(path) is Kind.FILE
        except InstallerError:  # without CAP_SYS_PTRACE another process's root cannot be read
            return
        if not there:
            problem = f"configure {engine.title} (pid {engine.pid} does not see {path}: it has other mounts)"
            remedy = Remedy("mount the host's own directory at ", Option("install-dir"), " for the engine")
            raise InstallerError(problem, remedy=remedy, code="toolkit-not-visible")


def specs_for(name: str) -> tuple[Engine, ...]:
    """Return the row of an engine, and that of the one that runs its containers for it."""
    return tuple(ENGINES[each] for each in (name, ENGINES[name].lower_engine) if each)


def data_of(host: Host, engine: EngineState, words: tuple[str, ...]) -> PurePosixPath | None:
    """Return where an engine that was started with these words has the files of its containers."""
    if (data := engine.spec.data) is None:
        return None
    return find_place(host, data, words, engine.config) or data.usual


def list_crowded(host: Host, names: Iterable[str]) -> Iterator[PurePosixPath]:
    """Yield where these engines have the state of containers, and have no room for one more."""
    places = dict.fromkeys(spec.state.usual for name in names for spec in specs_for(name))
    yield from (place for place in places if is_full(host, place))


def mount_options(host: Host, path: PurePosixPath, pid: int | None = None) -> tuple[str, ...]:
    """Return how the file system of ``path`` is mounted for a process: ours may be mounted otherwise."""
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
    """Return why a containerd without CRI is left alone; ``beside`` are the engines that run, too."""
    served = next((each for each in beside if ENGINES[each].lower_engine), "")
    usual = f", it serves {ENGINES[served].title}" if served else ""
    image = IMAGES.get(read_os_release(host).get("ID", ""))
    return f"its CRI is switched off{f': {image[0]}' if image else usual}"


def served_by_image(host: Host) -> Iterator[InstallerError]:
    """Yield why nothing is installed on a system that brings the toolkit in its own way."""
    image = IMAGES.get(read_os_release(host).get("ID", ""))
    if image is not None:
        yield InstallerError(f"install on this node ({image[0]})", remedy=image[1], code="not-supported")


def read_os_release(host: Host) -> dict[str, str]:
    """Return what os-release(5) says of the host, of its two places the first that can be read."""
    lines = next(filter(None, (text(host, path) for path in OS_RELEASES)), "").splitlines()
    return {name: value.strip("\"'") for name, _, value in (line.partition("=") for line in lines)}


def driver_root(host: Host, options: Options) -> tuple[str, tuple[str, ...]]:
    """Return where the host finds the driver, and a note where it is on the host itself.

    A container's driver goes first, as it does for the GPU Operator; where there is none, one may come yet.
    """
    usual = str(DEFAULT_DRIVER_ROOT)
    named = usual if options.driver_root == AUTO else options.driver_root
    if named != usual or host.names(DEFAULT_DRIVER_ROOT):
        return named, ()
    for directory in DRIVER_LIBRARY_DIRS:
        if any(name.startswith("libnvidia-ml.so.") for name in host.names(directory)):
            found = f"{usual} is empty and {directory} holds the driver"
            if options.driver_root == AUTO:
                return "/", (f"{found}: the toolkit looks for it in /",)
            return usual, (f"{found}: consider --driver-root /",)
    return usual, ()
