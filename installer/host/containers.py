"""Containers that were started by a given binary, from what the shims and CRI-O leave on the disk.

Not by the name of a handler: the default handler has none, and a config may have changed since the start.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias

from installer.decide.engines import ENGINES
from installer.decide.engines.crio import CRIO
from installer.decide.engines.docker import DOCKER
from installer.decide.engines.row import Monitor
from installer.decide.errors import InstallerError
from installer.decide.facts import Container
from installer.decide.inode import Kind
from installer.host.files import Host

SHIMS: Final = tuple(each for each in ENGINES.values() if each.state.monitor is Monitor.SHIM)
# Of two engines that share a place, the first.
STATES: Final = {each.state.usual: each.name for each in reversed(SHIMS)}
NAMESPACES: Final = {each.state.namespace: each.name for each in SHIMS if each.state.namespace}
TASKS: Final = "io.containerd.runtime.v2.task"
ANNOTATED: Final = "io.kubernetes.cri-o."
SHORT_ID: Final = 12
NOT_OPEN: Final = -1
HOOKS: Final = b'"hooks"'
# Those of CDI, which run in createContainer, are done with before a container lives.
STAGES: Final = ("prestart", "poststart", "poststop")
# CRI-O puts the hooks of its directory, ours perhaps, into each container: `being_made` waits for those.
CRIO_STAGES: Final = ("poststart", "poststop")
# Returns the file of the toolkit that a path leads to.
Leads: TypeAlias = Callable[[str], PurePosixPath | None]


def leads_nowhere(_: str) -> PurePosixPath | None:
    """Return None: where nobody asks for hooks."""
    return None


def of_shims(
    host: Host,
    states: Mapping[PurePosixPath, str],
    binaries: frozenset[PurePosixPath],
    leads: Leads = leads_nowhere,
) -> Iterator[Container]:
    """Yield the containers below containerd's state directories whose shim starts one of ``binaries``.

    So are those that have a hook which ``leads`` to the toolkit: what a spec was made with stays its own.
    ``states`` says to which engine a directory belongs, but for a namespace that is of another alone.
    A shim records the path in its bundle (engine-facts.md#containerd-shim-records).
    """
    known = Known(host, binaries)
    for tasks, owner in {host.resolve(state / TASKS): name for state, name in states.items()}.items():
        for namespace in host.names(tasks):
            # A node may run thousands: the way to them is followed once, and most take one open file.
            with _opened(host.local_path(tasks / namespace)) as directory:
                for name in host.names(tasks / namespace):
                    binary, spec = (
                        known.of(_binary(directory, name)),
                        _bytes(directory, f"{name}/config.json"),
                    )
                    if binary is None and HOOKS in spec:
                        binary = _hooked(_object(spec), STAGES, leads)
                    if binary is not None:
                        engine = NAMESPACES.get(namespace, owner)
                        pod = _pod(_object(spec))
                        yield Container(engine, name, pod or name[:SHORT_ID], binary)


def of_docker(host: Host, states: Iterable[PurePosixPath]) -> frozenset[str]:
    """Return the ids of Docker's containers that have a shim, whatever that starts."""
    places = {host.resolve(state / TASKS / DOCKER.state.namespace) for state in states}
    return frozenset(name for place in places for name in host.names(place))


def of_crio(
    host: Host,
    state: PurePosixPath,
    handlers: Mapping[str, PurePosixPath],
    binaries: frozenset[PurePosixPath],
    leads: Leads = leads_nowhere,
) -> Iterator[Container]:
    """Yield CRI-O's containers below ``state`` that it could not stop or remove without our runtimes.

    CRI-O finds the runtime by the handler of the container's sandbox. CRI does not tell that one, and a
    restarted CRI-O reads it where we do, in the annotations of the sandbox
    (engine-facts.md#crio-sandbox-handler). A sandbox without one takes the default of the moment, so none of
    ours once that is another.
    A pod can overwrite the annotation: what conmon was started with tells of ours whatever it says.
    """
    known = Known(host, binaries)
    bundles = {name: state / name / "userdata" for name in host.names(state)}
    specs = {name: _json(host, bundle / "config.json") for name, bundle in bundles.items()}
    said = {name: _annotations(spec) for name, spec in specs.items()}
    for name, annotations in said.items():
        if not annotations:
            continue
        sandbox = annotations.get(f"{ANNOTATED}SandboxID", name)
        handler = said.get(sandbox, annotations).get(f"{ANNOTATED}RuntimeHandler", "")
        started_by = known.of(_conmon(host, bundles[name], name))
        binary = handlers.get(handler) or (started_by if handler else None)
        binary = binary or _hooked(specs[name], CRIO_STAGES, leads)
        if binary is not None:
            pod = annotations.get("io.kubernetes.pod.name", name[:SHORT_ID])
            space = annotations.get("io.kubernetes.pod.namespace", "-")
            yield Container(CRIO.name, name, f"{space}/{pod}", binary)


def being_made(host: Host, state: PurePosixPath, toolkit: PurePosixPath) -> Iterator[str]:
    """Yield CRI-O's containers that have a hook of the toolkit still to run: no first process is told yet."""
    for name in host.names(state):
        bundle = state / name / "userdata"
        hooks = _json(host, bundle / "config.json").get("hooks") or {}
        paths = [PurePosixPath(str(hook.get("path"))) for stage in hooks.values() for hook in stage]
        if any(path.is_relative_to(toolkit) for path in paths) and not _read(host, bundle / "pidfile"):
            yield name


def pid_of_own(host: Host, state: PurePosixPath) -> int | None:
    """Return the host's number of the first process of the container of CRI-O's that we run in, if any.

    The container is the one that has our mount namespace.
    """
    own = str(Path("/proc/self/ns/mnt").readlink())
    for name in host.names(state):
        pid = _read(host, state / name / "userdata/pidfile").strip()
        with suppress(InstallerError):  # a process of others may not be looked at
            if pid.isdigit() and host.link_target(PurePosixPath("/proc", pid, "ns/mnt")) == own:
                return int(pid)
    return None


class Known:
    """Some binaries of a host, by the paths that containers were started with, links of others included.

    A link that leads on to a program of another name, as a forced undo leaves them, is none of ours.
    """

    def __init__(self, host: Host, binaries: frozenset[PurePosixPath]) -> None:
        self._host = host
        self._found: dict[str, PurePosixPath | None] = {str(binary): binary for binary in binaries}
        found = ((self._resolved(str(binary)), binary) for binary in binaries)
        self._real = {real: binary for real, binary in found if real and real.name == binary.name}

    def of(self, path: str) -> PurePosixPath | None:
        """Return which of the binaries a path is, None for another."""
        if path not in self._found:
            real = self._resolved(path)
            self._found[path] = self._real.get(real) if real else None
        return self._found[path]

    def _resolved(self, path: str) -> PurePosixPath | None:
        try:
            return self._host.resolve(PurePosixPath(path)) if path.startswith("/") else None
        except InstallerError:
            return None


def _conmon(host: Host, bundle: PurePosixPath, name: str) -> str:
    """Return the runtime that the monitor of a running container was started with, "" where nobody knows."""
    pid = _read(host, bundle / "conmon-pidfile").strip()
    words = _read(host, PurePosixPath(f"/proc/{pid}/cmdline")).split("\0") if pid.isdigit() else []
    # In a pid namespace of our own the number may be that of another process.
    if name in words and "-r" in words[:-1]:
        return words[words.index("-r") + 1]
    return ""


@contextmanager
def _opened(local: Path) -> Iterator[int]:
    """Hold a directory open for the block; where it has gone meanwhile, nothing is found below it."""
    try:
        directory = os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield NOT_OPEN
        return
    try:
        yield directory
    finally:
        os.close(directory)


def _binary(directory: int, name: str) -> str:
    path = _object(_bytes(directory, f"{name}/options.json")).get("binary_name")
    return str(path or _bytes(directory, f"{name}/runtime").decode(errors="surrogateescape").strip())


def _hooked(config: dict[str, Any], stages: Iterable[str], leads: Leads) -> PurePosixPath | None:
    """Return what of the toolkit a spec names as a hook, None where it names nothing of it."""
    said = config.get("hooks")
    hooks = said if isinstance(said, dict) else {}
    for stage in stages:
        named = hooks.get(stage)
        for hook in named if isinstance(named, list) else ():
            path = hook.get("path") if isinstance(hook, dict) else None
            if isinstance(path, str) and (found := leads(path)):
                return found
    return None


def _pod(config: dict[str, Any]) -> str:
    """Return namespace and name of the pod, "" for a container that is in none."""
    annotations = _annotations(config)
    pod = annotations.get("io.kubernetes.cri.sandbox-name", "")
    return f"{annotations.get('io.kubernetes.cri.sandbox-namespace', '-')}/{pod}" if pod else ""


def _annotations(config: dict[str, Any]) -> dict[str, Any]:
    annotations = config.get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def _object(content: bytes) -> dict[str, Any]:
    try:
        said = json.loads(content or b"{}")
    except (ValueError, RecursionError):  # being written in this moment, or nobody's honest work
        return {}
    return said if isinstance(said, dict) else {}


def _bytes(directory: int, path: str) -> bytes:
    """Return a regular file below an open directory; nothing where it has gone meanwhile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return b""
    try:
        status = os.fstat(file)
        return os.read(file, status.st_size) if stat.S_ISREG(status.st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(file)


def _read(host: Host, path: PurePosixPath) -> str:
    """Return the text of a regular file; nothing where it has gone meanwhile."""
    try:
        file = host.read(path) if host.kind(path) is Kind.FILE else None
    except InstallerError:
        return ""
    return file.content.decode(errors="surrogateescape") if file else ""


def _json(host: Host, path: PurePosixPath) -> dict[str, Any]:
    try:
        file = host.read(path) if host.kind(path) is Kind.FILE else None
    except InstallerError:  # the container has gone meanwhile
        return {}
    return _object(file.content if file else b"")
