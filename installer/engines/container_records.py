"""The records of containers on the disk: those of containerd's shims, and those of CRI-O."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.stopped_units import TASKS
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.processes import read_monitor, read_parent_monitor
from installer.model.engine import SHORT_ID, EngineState, LiveContainer
from installer.model.facts import Container

T = TypeVar("T")
# Returns the file of the toolkit that a path leads to, None for any other path.
Leads: TypeAlias = Callable[[str], PurePosixPath | None]
WITH_SHIMS: Final = tuple(kind for kind in ENGINES.values() if kind.has_shims)
# The engine to which all containers of a namespace belong.
NAMESPACES: Final = {kind.namespace: kind.name for kind in WITH_SHIMS if kind.namespace}
ANNOTATED: Final = "io.kubernetes.cri-o."
ROOT_ARGUMENT: Final = "--root="  # of conmon's --runtime-arg
RUN_DIRECTORY: Final = "--runtime-dir"  # of conmon-rs
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


def _lead_nowhere(_path: str) -> None:
    """Return no file of the toolkit: hooks do not count."""


def list_shim_containers(
    host: Host,
    states: Mapping[PurePosixPath, str],
    binaries: frozenset[PurePosixPath],
    *,
    leads: Leads = _lead_nowhere,
    owners: Leads = _lead_nowhere,
) -> Iterator[Container]:
    """Yield the containers with a shim that starts a program of ``binaries``, or with a hook of the toolkit.

    Args:
        host: The node.
        states: The directories of shims' records, each with its engine; some namespaces belong to another.
        binaries: Our runtimes.
        leads: Returns the file of the toolkit behind the path of a hook.
        owners: Returns an owner's program in the toolkit's directory by its path.
    """
    find_binary = _binary_finder(host, binaries)
    directories = {host.resolve(state / TASKS): engine for state, engine in states.items()}
    for tasks, engine in directories.items():
        for namespace in host.names(tasks):
            # A node may run thousands of containers: the path to them is resolved once.
            directory = host.local_path(tasks / namespace)
            for name in host.names(tasks / namespace):
                bundle = directory / name
                program = _read_program(bundle)
                binary = find_binary(program) or owners(program)
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
    owners: Leads = _lead_nowhere,
) -> Iterator[Container]:
    """Yield the containers that CRI-O could not stop or remove without our runtimes.

    Args:
        host: The node.
        engine: The name of the engine.
        state: The directory of CRI-O's records.
        handlers: Our runtimes by the names of their handlers.
        binaries: Our runtimes.
        leads: Returns the file of the toolkit behind the path of a hook.
        owners: Returns an owner's program in the toolkit's directory by its path.
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
        program = _find_program(monitor)
        started_by = find_binary(program) or owners(program)
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


def list_creating(host: Host, state: PurePosixPath, toolkit: PurePosixPath) -> Iterator[str]:
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
