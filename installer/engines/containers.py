"""The containers that run on our runtimes, whichever engine started them, and the wait for those in creation.

A container is found by the program that started it, from the records of shims and of CRI-O on the disk. The
name of a handler does not tell: the default handler has none, and a config may have changed since the start.
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
from installer.engines.config_texts import text_of, toolkit_runtimes
from installer.engines.engine_api import KeptContainer
from installer.engines.observe import engine_of_row
from installer.engines.stopped_units import TASKS
from installer.errors import InstallerError
from installer.host.events import log
from installer.host.files import Host, text
from installer.host.processes import read_monitor, read_parent_monitor
from installer.host.programs import can_be_started
from installer.model.effective import OUR_BINARIES
from installer.model.engine import EngineState, LiveContainer
from installer.model.facts import Container, EngineRow, Record
from installer.model.files import PATH, Kind, Layout

T = TypeVar("T")
# Returns the file of the toolkit that a path leads to, None for any other path.
Leads: TypeAlias = Callable[[str], PurePosixPath | None]

ASK_S: Final = 3.0
USUAL: Final = ("runc", "crun")
NOTICED_S: Final = 0.5  # until CRI-O has noticed a removed hook; it may still write a bundle with the hook
CREATED_S: Final = 10.0
CREATED_POLL_S: Final = 0.05
WITH_SHIMS: Final = tuple(kind for kind in ENGINES.values() if kind.has_shims)
# The engine to which all containers of a namespace belong.
NAMESPACES: Final = {kind.namespace: kind.name for kind in WITH_SHIMS if kind.namespace}
ANNOTATED: Final = "io.kubernetes.cri-o."
ROOT_ARGUMENT: Final = "--root="  # of conmon's --runtime-arg
RUN_DIRECTORY: Final = "--runtime-dir"  # of conmon-rs
SHORT_ID: Final = 12
SCRIPT_BYTES: Final = 64 << 10  # of a script that may start our program
COMMENT: Final = re.compile(r"(?m)^[^\S\n]*+#.*$")
FILE_BYTES: Final = 16 << 20  # of a bundle's config.json, which has the annotations of a pod
# The stages of hooks that run after the start of a container. Hooks of CDI run in createContainer, before it.
STAGES_OF_SHIMS: Final = ("prestart", "poststart", "poststop")
STAGES_OF_CRIO: Final = ("poststart", "poststop")


class _Hook(Struct, frozen=True):
    """A hook of an OCI spec."""

    path: str = ""


class _Annotations(Struct, frozen=True):
    """The annotations written by engines; all others, of which a pod has up to 256 KiB, are dropped."""

    sandbox: str = msgspec.field(default="", name=f"{ANNOTATED}SandboxID")
    handler: str = msgspec.field(default="", name=f"{ANNOTATED}RuntimeHandler")
    pod: str = msgspec.field(default="", name="io.kubernetes.pod.name")
    pod_namespace: str = msgspec.field(default="-", name="io.kubernetes.pod.namespace")
    sandbox_name: str = msgspec.field(default="", name="io.kubernetes.cri.sandbox-name")
    sandbox_namespace: str = msgspec.field(default="-", name="io.kubernetes.cri.sandbox-namespace")


class _Spec(Struct, frozen=True):
    """The annotations and the hooks of an OCI spec, config.json in a bundle."""

    annotations: _Annotations | None = None
    hooks: dict[str, list[_Hook] | None] | None = None

    def find_hook(self, leads: Leads, stages: Collection[str] | None = None) -> PurePosixPath | None:
        """Return the first file of the toolkit among the hooks of some stages, or of all stages."""
        for stage, hooks in (self.hooks or {}).items():
            if stages is not None and stage not in stages:
                continue
            for hook in hooks or ():
                file = leads(hook.path)
                if file:
                    return file
        return None


def find_running_containers(
    host: Host, layout: Layout, record: Record, engines: Collection[EngineState], *, restarts: bool = True
) -> tuple[Container, ...]:
    """List the containers on runtimes of this install-dir, or with a hook from there still to run.

    Engines with a completed undo count as well: after a forced undo their containers still use our links.

    Args:
        host: The node.
        layout: The install-dir.
        record: The ledger.
        engines: The observed engines; an engine of the ledger may be missing here.
        restarts: Whether we may restart engines; otherwise CRI-O uses its present default for pods
            without a handler.
    """
    if record.toolkit is None:
        return ()
    binaries = frozenset(layout.toolkit / name for name in OUR_BINARIES)

    def leads(path: str) -> PurePosixPath | None:
        if not path.startswith("/"):
            return None
        with suppress(InstallerError):
            return leads_to(host, PurePosixPath(path), layout)
        return None

    containers = list(list_shim_containers(host, _list_states(engines), binaries, leads=leads))
    for row in record.engines:
        kind = ENGINES[row.name]
        if kind.has_shims:
            continue
        engine = _find_engine(engines, row.name) or engine_of_row(row)
        # A pod on a handler of its owner's needs our program, too (engine-facts.md#crio-absent-program).
        handlers: dict[str, PurePosixPath] = {}
        for name, binary in engine.served.binaries.items():
            if PurePosixPath(binary) in binaries:
                handlers[name] = PurePosixPath(binary)
        handlers.update(row.runtimes)
        default = engine.served.default
        if default in handlers and not restarts:
            handlers[""] = handlers[default]
        state = engine.state or row.state or kind.state.usual
        containers += list_crio_containers(host, row.name, state, handlers, binaries, leads=leads)
    return tuple(containers)


def _find_engine(engines: Collection[EngineState], name: str) -> EngineState | None:
    """Return the engine of a name."""
    return next((engine for engine in engines if engine.name == name), None)


def _list_states(engines: Collection[EngineState]) -> dict[PurePosixPath, str]:
    """Map the directories of shims' records to their engines."""
    states: dict[PurePosixPath, str] = {}
    for kind in reversed(WITH_SHIMS):  # of two engines with the same directory the first wins
        states[kind.state.usual] = kind.name
    for engine in engines:
        if engine.state and engine.kind.has_shims:
            states[engine.state] = engine.name
    return states


def find_in_use(
    host: Host, layout: Layout, record: Record, engines: Collection[EngineState], *, restarts: bool = True
) -> tuple[tuple[Container, ...], tuple[str, ...]]:
    """List the containers that need our runtimes, and the names of stopped containers that will need them.

    Arguments: see ``find_running_containers``.
    """
    keepers = [row for row in record.engines if ENGINES[row.name].keeps_containers]
    # Docker is asked first: a container that it calls running, and that has no shim after that, has ended.
    kept_containers = {row.name: _list_kept_containers(host, row, engines) for row in keepers}
    running = find_running_containers(host, layout, record, engines, restarts=restarts)
    running_ids = {container.id for container in running}

    names: dict[str, str] = {}
    between_lives: list[Container] = []
    stopped: list[str] = []
    for row in keepers:
        shim_ids = _list_shim_ids(host, engines, ENGINES[row.name].namespace)
        for kept in kept_containers[row.name]:
            names[kept.id] = kept.name
            if kept.runtime not in row.runtimes or kept.id in running_ids:
                continue
            if not (kept.running or kept.restarting):
                stopped.append(kept.name)
            elif record.toolkit and (kept.restarting or kept.id not in shim_ids):
                # A container that crashes again and again has no shim between two lives.
                between_lives.append(Container(row.name, kept.id, kept.name, row.runtimes[kept.runtime]))

    named = [replace(container, name=names.get(container.id, container.name)) for container in running]
    return (*named, *between_lives), tuple(sorted(stopped))


def _list_shim_ids(host: Host, engines: Collection[EngineState], namespace: str) -> set[str]:
    """List the ids of the containers of a namespace with a shim, in all directories of records."""
    directories = {host.resolve(state / TASKS / namespace) for state in _list_states(engines)}
    ids: set[str] = set()
    for directory in directories:
        ids.update(host.names(directory))
    return ids


def _list_kept_containers(
    host: Host, row: EngineRow, engines: Collection[EngineState]
) -> tuple[KeptContainer, ...]:
    """List the containers kept by an engine; none if the engine is stopped or does not answer."""
    kind = ENGINES[row.name]
    engine = _find_engine(engines, row.name)
    answers = engine is not None and engine.serving is not None
    if not answers and is_socket_activated(host, kind, row.socket, row.unit):
        return ()
    with suppress(InstallerError):
        return api_of(kind).list_kept_containers(host.local_path(row.socket), timeout_s=ASK_S)
    return ()


def find_substitute_runtime(host: Host, record: Record) -> PurePosixPath | None:
    """Find the path of the runtime wrapped by our runtimes, as the host finds it; None if not found."""
    words = toolkit_runtimes(record.toolkit.rendered) if record.toolkit else ()
    for path in _list_candidates((*words, *USUAL)):
        if host.kind(path) is Kind.FILE:
            return path
    return None


def find_low_level_runtime(host: Host, layout: Layout, record: Record) -> PurePosixPath | None:
    """Find the runtime called by our runtimes under the present config.toml; None if not found."""
    if record.toolkit is None or record.cdi is not None:
        return None
    words = toolkit_runtimes(record.toolkit.rendered)
    with suppress(InstallerError):  # the plan reports a file that cannot be parsed
        file = host.read(layout.config)
        if file:
            words = toolkit_runtimes(text_of(file, layout.config))
    for path in _list_candidates(words or USUAL):
        if can_be_started(host, path):
            return path
    return None


def _list_candidates(words: Collection[str]) -> Iterator[PurePosixPath]:
    """Yield the paths of programs: a path itself, a name in each directory of the PATH."""
    for word in words:
        if word.startswith("/"):
            yield PurePosixPath(word)
        else:
            for directory in PATH:
                yield directory / word


def leads_to(host: Host, path: PurePosixPath, layout: Layout) -> PurePosixPath | None:
    """Find the file of ours behind a path: by links, or by a script at the path; None for no file of ours."""
    home = host.resolve(layout.home)
    file = host.resolve(path)
    script = ""
    if host.kind(file) is Kind.FILE and host.size(file) <= SCRIPT_BYTES:
        script = text(host, file)
    named: list[PurePosixPath] = []
    if script.startswith("#!"):
        named = find_paths(script, list_places(host, layout))

    files = (file, *map(host.resolve, named))
    return next((each for each in files if each.is_relative_to(home)), None)


def list_places(host: Host, layout: Layout) -> tuple[str, ...]:
    """List the directories of the toolkit, also behind a link in the place of the install-dir."""
    directories: list[str] = []
    for install_dir in dict.fromkeys((layout.install_dir, host.resolve(layout.install_dir))):
        its_layout = Layout(install_dir)
        directories += [str(its_layout.toolkit), str(its_layout.home)]
    return tuple(directories)


def find_paths(text: str, places: Collection[str]) -> list[PurePosixPath]:
    """Find the paths below some directories among the words of a text: YAML, JSON or a script."""
    text = text.replace("\\/", "/")
    if not any(place in text for place in places):
        return []
    directories = "|".join(map(re.escape, places))  # may contain characters that end a word
    words = rf"""(?<![^\s"'=:,;\[({{<|>])(?:{directories})[^\s\0"',:;\[\](){{}}<|>]*"""
    return [PurePosixPath(word) for word in re.findall(words, COMMENT.sub("", text))]


def list_hooks(host: Host, engine: EngineState) -> Iterator[PurePosixPath]:
    """Yield the OCI hooks run by an engine; without an answer, the hooks of its usual directory."""
    directories = list(engine.served.hook_dirs)
    if not directories and engine.kind.hook_dir:
        directories.append(engine.kind.hook_dir)
    if engine.hook is not None and engine.hook.parent not in directories:
        directories.append(engine.hook.parent)
    for directory in directories:
        for name in host.names(directory):
            if name.endswith(".json") and host.kind(directory / name) is Kind.FILE:
                yield directory / name


def await_created(host: Host, engine: EngineState, layout: Layout, check: Callable[[], None]) -> None:
    """Wait until each container in creation has run our hook, already removed from the engine's hooks."""
    if engine.serving is None:
        return
    time.sleep(NOTICED_S)
    deadline = time.monotonic() + CREATED_S
    state = engine.state or engine.kind.state.usual
    while creating := tuple(_list_creating(host, state, layout.toolkit)):
        if time.monotonic() > deadline:
            ids = [container_id[:SHORT_ID] for container_id in creating]
            reason = "they need our hook to start, and it is removed now; delete their pods if they stay so"
            log.warning("containers stuck in CREATED", containers=ids, reason=reason)
            return
        check()
        time.sleep(CREATED_POLL_S)


def _lead_nowhere(_path: str) -> None:
    """Return no file of the toolkit: hooks do not count."""


def list_shim_containers(
    host: Host,
    states: Mapping[PurePosixPath, str],
    binaries: frozenset[PurePosixPath],
    *,
    leads: Leads = _lead_nowhere,
) -> Iterator[Container]:
    """Yield the containers with a shim that starts a program of ``binaries``, or with a hook of the toolkit.

    Args:
        host: The node.
        states: The directories of shims' records, each with its engine; some namespaces belong to another.
        binaries: Our runtimes.
        leads: Returns the file of the toolkit behind the path of a hook.
    """
    find_binary = _binary_finder(host, binaries)
    directories = {host.resolve(state / TASKS): engine for state, engine in states.items()}
    for tasks, engine in directories.items():
        for namespace in host.names(tasks):
            # A node may run thousands of containers: the path to them is resolved once.
            directory = host.local_path(tasks / namespace)
            for name in host.names(tasks / namespace):
                bundle = directory / name
                binary = find_binary(_read_program(bundle))
                content = _read(bundle / "config.json")
                if binary is None and b'"hooks"' in content:
                    binary = _decode(content, _Spec).find_hook(leads, STAGES_OF_SHIMS)
                if binary is not None:
                    title = _name_pod(content) or name[:SHORT_ID]
                    yield Container(NAMESPACES.get(namespace, engine), name, title, binary)


def _read_program(bundle: Path) -> str:
    """Return the program started by a shim, by its records (engine-facts.md#containerd-shim-records)."""
    options = _decode(_read(bundle / "options.json"), dict)
    program = options.get("binary_name")
    if not program:
        program = _read(bundle / "runtime").decode(errors="surrogateescape")
    return str(program).strip()


def _name_pod(content: bytes) -> str:
    """Return the namespace and the name of the pod of an OCI spec; "" without a pod."""
    annotations = _decode(content, _Spec).annotations
    if annotations is None or not annotations.sandbox_name:
        return ""
    return f"{annotations.sandbox_namespace}/{annotations.sandbox_name}"


def list_crio_containers(  # noqa: PLR0913 - the records of CRI-O, and our part in them
    host: Host,
    engine: str,
    state: PurePosixPath,
    handlers: Mapping[str, PurePosixPath],
    binaries: frozenset[PurePosixPath],
    *,
    leads: Leads = _lead_nowhere,
) -> Iterator[Container]:
    """Yield the containers that CRI-O could not stop or remove without our runtimes.

    Args:
        host: The node.
        engine: The name of the engine.
        state: The directory of CRI-O's records.
        handlers: Our runtimes by the names of their handlers.
        binaries: Our runtimes.
        leads: Returns the file of the toolkit behind the path of a hook.
    """
    find_binary = _binary_finder(host, binaries)
    bundles = {name: host.local_path(state) / name / "userdata" for name in host.names(state)}
    specs = {name: _decode(_read(bundle / "config.json"), _Spec) for name, bundle in bundles.items()}
    for name, spec in specs.items():
        annotations = spec.annotations
        if annotations is None or annotations == _Annotations():
            continue
        sandbox = specs.get(annotations.sandbox or name, spec)
        # After a restart CRI-O finds the runtime by this annotation (engine-facts.md#crio-sandbox-handler),
        # or takes the default of the moment. A pod can overwrite the annotation: conmon's words count, too.
        handler = (sandbox.annotations or annotations).handler
        monitor = _read_monitor(host, bundles[name], name, annotations.sandbox)
        started_by = find_binary(_find_program(monitor))
        binary = handlers.get(handler)
        if binary is None and handler:
            binary = started_by
        # CRI-O puts the hooks of its directory, perhaps ours, into each container: `await_created` waits for
        # these hooks.
        binary = binary or spec.find_hook(leads, STAGES_OF_CRIO)
        if binary is not None:
            pod = annotations.pod or name[:SHORT_ID]
            yield Container(engine, name, f"{annotations.pod_namespace}/{pod}", binary)


def with_live_containers(host: Host, engine: EngineState) -> EngineState:
    """Fill in the running containers for which an engine looks by their handlers after a restart."""
    if not engine.kind.finds_by_handler or engine.serving is None:
        return engine
    state = engine.state or engine.kind.state.usual
    containers: dict[tuple[str, str, str], LiveContainer] = {}
    for name in host.names(state):
        annotations = _read_annotations(host, state, name)
        words = _read_monitor(host, host.local_path(state) / name / "userdata", name, annotations.sandbox)
        program = _find_program(words)
        root = _find_root(words)
        if not (program and root):
            continue
        handler = _read_annotations(host, state, annotations.sandbox or name).handler
        title = name[:SHORT_ID]
        if annotations.pod:
            title = f"{annotations.pod_namespace}/{annotations.pod}"
        live = LiveContainer(title, handler, root, program)
        containers.setdefault((handler, root, program), live)
    return replace(engine, live=tuple(containers.values()))


def _read_annotations(host: Host, state: PurePosixPath, name: str) -> _Annotations:
    """Return the annotations given by CRI-O to a container or a sandbox."""
    spec = _decode(_read(host.local_path(state) / name / "userdata/config.json"), _Spec)
    return spec.annotations or _Annotations()


def _list_creating(host: Host, state: PurePosixPath, toolkit: PurePosixPath) -> Iterator[str]:
    """Yield the ids of CRI-O's containers with a hook of the toolkit and without a first process yet."""

    def leads(path: str) -> PurePosixPath | None:
        hook = PurePosixPath(path)
        return hook if hook.is_relative_to(toolkit) else None

    for name in host.names(state):
        bundle = host.local_path(state) / name / "userdata"
        if _decode(_read(bundle / "config.json"), _Spec).find_hook(leads) and not _read(bundle / "pidfile"):
            yield name


def find_own_pid(host: Host, state: PurePosixPath) -> int | None:
    """Return the host's pid of CRI-O's container with our mount namespace; None for no container."""
    own_namespace = str(Path("/proc/self/ns/mnt").readlink())
    for name in host.names(state):
        pid = _read(host.local_path(state) / name / "userdata/pidfile").decode(errors="replace").strip()
        with suppress(InstallerError):  # a process of others may not be looked at
            if pid.isdigit():
                namespace = host.link_target(PurePosixPath("/proc", pid, "ns/mnt"))
                if namespace == own_namespace:
                    return int(pid)
    return None


def _binary_finder(host: Host, binaries: frozenset[PurePosixPath]) -> Callable[[str], PurePosixPath | None]:
    """Return a function that finds the runtime of ours behind a path, also by links of others."""

    def resolve(path: str) -> PurePosixPath | None:
        if not path.startswith("/"):
            return None
        with suppress(InstallerError):
            return host.resolve(PurePosixPath(path))
        return None

    by_path = {str(binary): binary for binary in binaries}
    by_file: dict[PurePosixPath | None, PurePosixPath] = {}
    for path, binary in by_path.items():
        file = resolve(path)
        # A forced undo leaves links to programs of other names: those programs are not ours.
        if file and file.name == binary.name:
            by_file[file] = binary

    @cache
    def find_binary(path: str) -> PurePosixPath | None:
        return by_path.get(path) or by_file.get(resolve(path))

    return find_binary


def _read_monitor(host: Host, bundle: Path, name: str, sandbox: str) -> tuple[str, ...]:
    """Return the command line of the monitor of a running container; none if unknown.

    A conmon has one container, and its words name the container. A conmon-rs has the containers of a pod: it
    is the parent of the container, and its words name the directory of the sandbox
    (engine-facts.md#crio-conmon-rs).
    """
    pid = _read(bundle / "conmon-pidfile").decode(errors="replace").strip()
    words = read_monitor(host, int(pid)) if pid.isdigit() else ()
    # In a pid namespace of our own the number may be that of another process.
    if name in words:
        return words

    pid = _read(bundle / "pidfile").decode(errors="replace").strip()
    words = read_parent_monitor(host, int(pid)) if pid.isdigit() else ()
    directory = _find_value(words, RUN_DIRECTORY)
    return words if (sandbox or name) in PurePosixPath(directory).parts else ()


def _find_program(words: tuple[str, ...]) -> str:
    """Return the runtime in the command line of a monitor; "" if there is none."""
    return _find_value(words, "-r") or _find_value(words, "--runtime")


def _find_root(words: tuple[str, ...]) -> str:
    """Return the directory of the runtime's state in the command line of a monitor; "" if there is none."""
    roots = [word.removeprefix(ROOT_ARGUMENT) for word in words if word.startswith(ROOT_ARGUMENT)]
    return next(iter(roots), "") or _find_value(words, "--runtime-root")


def _find_value(words: tuple[str, ...], flag: str) -> str:
    """Return the word behind a flag; "" if there is none."""
    if flag not in words[:-1]:
        return ""
    return words[words.index(flag) + 1]


def _decode(content: bytes, kind: type[T]) -> T:
    """Return the content of a file; an empty value for a file in writing, or by another program."""
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except (ValueError, RecursionError):
        return kind()


def _read(file: Path) -> bytes:
    """Return a record of an engine; nothing if the file is gone, or too large."""
    with suppress(OSError), file.open("rb") as stream:
        content = stream.read(FILE_BYTES + 1)
        if len(content) <= FILE_BYTES:
            return content
    return b""
