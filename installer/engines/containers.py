"""The containers that run on our runtimes, whichever engine started them, and the wait for one in the making.

They are found by the binary that they were started with, from what shims and CRI-O leave on the disk. Not by
the name of a handler: the default handler has none, and a config may have changed since the start.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.apis import api_of
from installer.engines.ask import is_socket_activated
from installer.engines.config_edits import text_of, toolkit_runtimes
from installer.engines.engine_api import KeptContainer
from installer.engines.observe import engine_of_row
from installer.engines.stopped_units import TASKS
from installer.errors import InstallerError
from installer.host.events import log
from installer.host.files import Host, text
from installer.host.processes import read_monitor
from installer.host.programs import can_be_started
from installer.model.engine import OUR_BINARIES, EngineState, LiveContainer
from installer.model.facts import Container, EngineRow, Record
from installer.model.files import PATH, Kind, Layout

T = TypeVar("T")
# Returns the file of the toolkit that a path leads to.
Leads: TypeAlias = Callable[[str], PurePosixPath | None]

ASK_S: Final = 3.0
USUAL: Final = ("runc", "crun")
NOTICED_S: Final = 0.5  # CRI-O watches its hooks; meanwhile it may be writing a bundle with ours
CREATED_S: Final = 10.0
CREATED_POLL_S: Final = 0.05
CRIO: Final = next(each.name for each in ENGINES.values() if not each.has_shims)
SHIMS: Final = tuple(each for each in ENGINES.values() if each.has_shims)
NAMESPACES: Final = {each.namespace: each.name for each in SHIMS if each.namespace}
ANNOTATED: Final = "io.kubernetes.cri-o."
ROOT_ARGUMENT: Final = "--root="  # of conmon's --runtime-arg
SHORT_ID: Final = 12
SCRIPT_BYTES: Final = 64 << 10  # of one that may start our program
COMMENT: Final = re.compile(r"(?m)^[^\S\n]*+#.*$")
FILE_BYTES: Final = 16 << 20  # of a bundle's config.json, which has the annotations of a pod


class _Hook(Struct, frozen=True):
    path: str = ""


class _Annotations(Struct, frozen=True):
    """The annotations that engines write; the others, of which a pod has up to 256 KiB, are not kept."""

    sandbox: str = msgspec.field(default="", name=f"{ANNOTATED}SandboxID")
    handler: str = msgspec.field(default="", name=f"{ANNOTATED}RuntimeHandler")
    pod: str = msgspec.field(default="", name="io.kubernetes.pod.name")
    pod_namespace: str = msgspec.field(default="-", name="io.kubernetes.pod.namespace")
    sandbox_name: str = msgspec.field(default="", name="io.kubernetes.cri.sandbox-name")
    sandbox_namespace: str = msgspec.field(default="-", name="io.kubernetes.cri.sandbox-namespace")


class _Spec(Struct, frozen=True):
    """What counts here of an OCI spec, config.json in a bundle."""

    annotations: _Annotations | None = None
    hooks: dict[str, list[_Hook] | None] | None = None

    def find_hook(self, leads: Leads, stages: Collection[str] | None = None) -> PurePosixPath | None:
        """Return what of the toolkit it names as a hook, of these stages or of any."""
        for stage, hooks in (self.hooks or {}).items():
            for hook in hooks or () if stages is None or stage in stages else ():
                if found := leads(hook.path):
                    return found
        return None


def find_running_containers(
    host: Host, layout: Layout, record: Record, engines: Collection[EngineState], *, restarts: bool = True
) -> tuple[Container, ...]:
    """Return the containers on runtimes of this install-dir, or with a hook of it still to run.

    An engine that has been undone may still run some: a forced undo leaves them links.
    """
    if record.toolkit is None:
        return ()
    binaries = frozenset(layout.toolkit / name for name in OUR_BINARIES)

    def leads(path: str) -> PurePosixPath | None:
        with suppress(InstallerError):
            return leads_to(host, PurePosixPath(path), layout) if path.startswith("/") else None
        return None

    found = [*list_shim_containers(host, _states(engines), binaries, leads)]
    for row in (each for each in record.engines if not ENGINES[each.name].has_shims):
        engine = next((engine for engine in engines if engine.name == row.name), engine_of_row(row))
        # A pod on a handler of its owner's needs our program, too (engine-facts.md#crio-absent-program).
        paths = {name: PurePosixPath(path) for name, path in engine.served.binaries.items()}
        handlers = {name: path for name, path in paths.items() if path in binaries} | {**row.runtimes}
        default = engine.served.default
        if default in handlers and not restarts:  # who asked for nothing needs what is default now
            handlers[""] = handlers[default]
        state = engine.state or row.state or ENGINES[row.name].state.usual
        found += list_crio_containers(host, state, handlers, binaries, leads)
    return tuple(found)


def _states(engines: Collection[EngineState]) -> dict[PurePosixPath, str]:
    """Return where shims leave what they run, and to which engine that belongs."""
    # Of two engines that share a place, the first.
    return {each.state.usual: each.name for each in reversed(SHIMS)} | {
        engine.state: engine.name for engine in engines if engine.state and engine.spec.has_shims
    }


def find_in_use(
    host: Host, layout: Layout, record: Record, engines: Collection[EngineState], *, restarts: bool = True
) -> tuple[tuple[Container, ...], tuple[str, ...]]:
    """Return the containers that need our runtimes, and the names of a Docker's stopped ones."""
    # Docker first: one that it calls running, and that has no shim then, has just ended.
    row = next((row for row in record.engines if ENGINES[row.name].keeps_containers), None)
    known = _known_to_docker(host, row, engines) if row else ()
    running = find_running_containers(host, layout, record, engines, restarts=restarts)
    if row is None:
        return running, ()
    names = {each.id: each.name for each in known}
    ours = row.runtimes
    named = [each for each in known if each.runtime in ours and each.id not in {one.id for one in running}]
    places = {host.resolve(state / TASKS / ENGINES[row.name].namespace) for state in _states(engines)}
    shims = {name for place in places for name in host.names(place)}
    # One that crashes again and again has no shim between two lives, and needs our runtime for the next.
    again = [
        Container(row.name, each.id, each.name, ours[each.runtime])
        for each in named
        if record.toolkit and (each.restarting or (each.running and each.id not in shims))
    ]
    idle = sorted(each.name for each in named if not (each.running or each.restarting))
    return (*(replace(each, name=names.get(each.id, each.name)) for each in running), *again), tuple(idle)


def _known_to_docker(
    host: Host, row: EngineRow, engines: Collection[EngineState]
) -> tuple[KeptContainer, ...]:
    """Return the containers of a dockerd that answers; of a stopped one they are not known."""
    engine = next((engine for engine in engines if engine.name == row.name), None)
    answers = engine is not None and engine.serving is not None
    if answers or not is_socket_activated(host, ENGINES[row.name], row.socket, row.unit):
        with suppress(InstallerError):
            return api_of(ENGINES[row.name]).list_kept_containers(
                host.local_path(row.socket), timeout_s=ASK_S
            )
    return ()


def find_substitute_runtime(host: Host, record: Record) -> PurePosixPath | None:
    """Return the path of the runtime that ours wrap, as the host finds it; None where there is none."""
    words = toolkit_runtimes(record.toolkit.rendered) if record.toolkit else ()
    return next((path for path in _places((*words, *USUAL)) if host.kind(path) is Kind.FILE), None)


def find_low_level_runtime(host: Host, layout: Layout, record: Record) -> PurePosixPath | None:
    """Return the runtime that ours hand over to by the config.toml that lies there; None if not found."""
    if record.toolkit is None or record.cdi is not None:
        return None
    words = toolkit_runtimes(record.toolkit.rendered)
    with suppress(InstallerError):  # the plan reports what cannot be parsed
        file = host.read(layout.config)
        words = toolkit_runtimes(text_of(file, layout.config)) if file else words
    return next((path for path in _places(words or USUAL) if can_be_started(host, path)), None)


def _places(words: Collection[str]) -> Iterator[PurePosixPath]:
    for word in words:
        yield from (PurePosixPath(word),) if word.startswith("/") else (place / word for place in PATH)


def leads_to(host: Host, path: PurePosixPath, layout: Layout) -> PurePosixPath | None:
    """Return the file of ours that a path leads to by links, or that a script there names, if any."""
    home, real = host.resolve(layout.home), host.resolve(path)
    small = host.kind(real) is Kind.FILE and host.size(real) <= SCRIPT_BYTES
    script = text(host, real) if small else ""
    named = find_paths(script, list_places(host, layout)) if script.startswith("#!") else []
    leads = (real, *map(host.resolve, named))
    return next((file for file in leads if file.is_relative_to(home)), None)


def list_places(host: Host, layout: Layout) -> tuple[str, ...]:
    """Return the directories of the toolkit, also as they are where the install-dir is a link."""
    both = map(Layout, dict.fromkeys((layout.install_dir, host.resolve(layout.install_dir))))
    return tuple(str(place) for each in both for place in (each.toolkit, each.home))


def find_paths(text: str, places: Collection[str]) -> list[PurePosixPath]:
    """Return the words of a text, YAML, JSON or a script, that are a path below one of these places."""
    text = text.replace("\\/", "/")
    if not any(place in text for place in places):
        return []
    ours = "|".join(map(re.escape, places))  # which may hold what ends a word
    words = rf"""(?<![^\s"'=:,;\[({{<|>])(?:{ours})[^\s\0"',:;\[\](){{}}<|>]*"""
    return [*map(PurePosixPath, re.findall(words, COMMENT.sub("", text)))]


def list_hooks(host: Host, engine: EngineState) -> Iterator[PurePosixPath]:
    """Yield the OCI hooks that an engine runs, in what is its usual place where it does not tell."""
    usual = engine.spec.hook_dir
    directories = list(engine.served.hook_dirs or ((usual,) if usual else ()))
    if engine.hook is not None and engine.hook.parent not in directories:
        directories.append(engine.hook.parent)
    for directory in directories:
        for name in host.names(directory):
            if name.endswith(".json") and host.kind(directory / name) is Kind.FILE:
                yield directory / name


def await_created(host: Host, engine: EngineState, layout: Layout, check: Callable[[], None]) -> None:
    """Wait until no container that an engine is making has yet to run a hook of ours, which is removed."""
    if engine.serving is None:
        return
    time.sleep(NOTICED_S)
    deadline = time.monotonic() + CREATED_S
    state = engine.state or engine.spec.state.usual
    while waiting := tuple(_being_made(host, state, layout.toolkit)):
        if time.monotonic() > deadline:
            ids = [each[:12] for each in waiting]
            reason = "they need our hook to start, and it is removed now; delete their pods if they stay so"
            log.warning("containers stuck in CREATED", containers=ids, reason=reason)
            return
        check()
        time.sleep(CREATED_POLL_S)


def list_shim_containers(
    host: Host,
    states: Mapping[PurePosixPath, str],
    binaries: frozenset[PurePosixPath],
    leads: Leads = lambda _: None,
) -> Iterator[Container]:
    """Yield the containers whose shim starts one of ``binaries``, or that have a hook of the toolkit.

    ``states`` says to which engine a state directory of containerd's belongs, but for a namespace that is of
    another alone.
    """
    known = _known(host, binaries)
    for tasks, owner in {host.resolve(state / TASKS): name for state, name in states.items()}.items():
        for namespace in host.names(tasks):
            # A node may run thousands: the way to them is followed once.
            directory = host.local_path(tasks / namespace)
            for name in host.names(tasks / namespace):
                # A shim records what it starts in its bundle (engine-facts.md#containerd-shim-records).
                named = _decode(_read(directory / name / "options.json"), dict).get("binary_name")
                started = named or _read(directory / name / "runtime").decode(errors="surrogateescape")
                binary, spec = known(str(started).strip()), _read(directory / name / "config.json")
                if binary is None and b'"hooks"' in spec:
                    # Those of CDI, which run in createContainer, are done with before a container lives.
                    binary = _decode(spec, _Spec).find_hook(leads, ("prestart", "poststart", "poststop"))
                if binary is not None:
                    said = _decode(spec, _Spec).annotations or _Annotations()
                    title = name[:SHORT_ID]
                    if said.sandbox_name:
                        title = f"{said.sandbox_namespace}/{said.sandbox_name}"
                    yield Container(NAMESPACES.get(namespace, owner), name, title, binary)


def list_crio_containers(
    host: Host,
    state: PurePosixPath,
    handlers: Mapping[str, PurePosixPath],
    binaries: frozenset[PurePosixPath],
    leads: Leads = lambda _: None,
) -> Iterator[Container]:
    """Yield CRI-O's containers below ``state`` that it could not stop or remove without our runtimes."""
    known = _known(host, binaries)
    bundles = {name: host.local_path(state) / name / "userdata" for name in host.names(state)}
    specs = {name: _decode(_read(bundle / "config.json"), _Spec) for name, bundle in bundles.items()}
    for name, spec in specs.items():
        annotations = spec.annotations
        if annotations is None or annotations == _Annotations():
            continue
        sandbox = specs.get(annotations.sandbox or name, spec)
        # After a restart CRI-O finds the runtime by this (engine-facts.md#crio-sandbox-handler), or takes the
        # default of the moment. A pod can overwrite it: what conmon was started with tells of ours as well.
        handler = (sandbox.annotations or annotations).handler
        started_by = known(_find_program(_read_conmon(host, bundles[name], name)))
        binary = handlers.get(handler) or (started_by if handler else None)
        # CRI-O puts the hooks of its directory, ours perhaps, into each container: `await_created` waits for
        # those.
        binary = binary or spec.find_hook(leads, ("poststart", "poststop"))
        if binary is not None:
            pod = annotations.pod or name[:SHORT_ID]
            yield Container(CRIO, name, f"{annotations.pod_namespace}/{pod}", binary)


def with_live_containers(host: Host, engine: EngineState) -> EngineState:
    """Return an engine with the running containers that it finds by their handlers after a restart."""
    if not engine.spec.finds_by_handler or engine.serving is None:
        return engine
    state = engine.state or engine.spec.state.usual
    found: dict[tuple[str, str, str], LiveContainer] = {}
    for name in host.names(state):
        words = _read_conmon(host, host.local_path(state) / name / "userdata", name)
        program = _find_program(words)
        roots = [word.removeprefix(ROOT_ARGUMENT) for word in words if word.startswith(ROOT_ARGUMENT)]
        if not (program and roots):
            continue
        said = _read_annotations(host, state, name)
        handler = _read_annotations(host, state, said.sandbox or name).handler
        title = f"{said.pod_namespace}/{said.pod}" if said.pod else name[:SHORT_ID]
        live = LiveContainer(title, handler, roots[0], program)
        found.setdefault((handler, roots[0], program), live)
    return replace(engine, live=tuple(found.values()))


def _read_annotations(host: Host, state: PurePosixPath, name: str) -> _Annotations:
    """Return the annotations that CRI-O gave a container or a sandbox."""
    spec = _decode(_read(host.local_path(state) / name / "userdata/config.json"), _Spec)
    return spec.annotations or _Annotations()


def _being_made(host: Host, state: PurePosixPath, toolkit: PurePosixPath) -> Iterator[str]:
    """Yield CRI-O's containers that have a hook of the toolkit still to run, so no first process."""

    def leads(path: str) -> PurePosixPath | None:
        return PurePosixPath(path) if PurePosixPath(path).is_relative_to(toolkit) else None

    for name in host.names(state):
        bundle = host.local_path(state) / name / "userdata"
        if _decode(_read(bundle / "config.json"), _Spec).find_hook(leads) and not _read(bundle / "pidfile"):
            yield name


def find_own_pid(host: Host, state: PurePosixPath) -> int | None:
    """Return the host's pid of the container of CRI-O's that has our mount namespace, None where none has."""
    own = str(Path("/proc/self/ns/mnt").readlink())
    for name in host.names(state):
        pid = _read(host.local_path(state) / name / "userdata/pidfile").decode(errors="replace").strip()
        with suppress(InstallerError):  # a process of others may not be looked at
            if pid.isdigit() and host.link_target(PurePosixPath("/proc", pid, "ns/mnt")) == own:
                return int(pid)
    return None


def _known(host: Host, binaries: frozenset[PurePosixPath]) -> Callable[[str], PurePosixPath | None]:
    """Return a function that tells which of the binaries a path is, itself or by a link of others."""

    def resolved(path: str) -> PurePosixPath | None:
        with suppress(InstallerError):
            return host.resolve(PurePosixPath(path)) if path.startswith("/") else None
        return None

    ours = {str(binary): binary for binary in binaries}
    # A link that leads to a program of another name, as a forced undo leaves them, is none of ours.
    real: dict[PurePosixPath | None, PurePosixPath] = {
        there: ours[path] for path in ours if (there := resolved(path)) and there.name == ours[path].name
    }
    return cache(lambda path: ours.get(path) or real.get(resolved(path)))


def _read_conmon(host: Host, bundle: Path, name: str) -> tuple[str, ...]:
    """Return the words that the monitor of a running container was started with; none if unknown."""
    pid = _read(bundle / "conmon-pidfile").decode(errors="replace").strip()
    words = read_monitor(host, int(pid)) if pid.isdigit() else ()
    # In a pid namespace of our own the number may be that of another process.
    return words if name in words else ()


def _find_program(words: tuple[str, ...]) -> str:
    """Return the runtime that is among the words of a monitor; "" if there is none."""
    return words[words.index("-r") + 1] if "-r" in words[:-1] else ""


def _decode(content: bytes, kind: type[T]) -> T:
    """Return what a file says; nothing of one that is being written, or that no engine has written."""
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except (ValueError, RecursionError):
        return kind()


def _read(file: Path) -> bytes:
    """Return a file that an engine has left; nothing where it has gone meanwhile, or is too large."""
    with suppress(OSError), file.open("rb") as content:
        found = content.read(FILE_BYTES + 1)
        return found if len(found) <= FILE_BYTES else b""
    return b""
