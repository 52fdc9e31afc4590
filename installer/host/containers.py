"""Containers that were started by a given binary, from what the shims and CRI-O leave on the disk.

Not by the name of a handler: the default handler has none, and a config may have changed since the start.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final

from installer.decide.errors import InstallerError
from installer.decide.facts import Container
from installer.decide.inode import Kind
from installer.host.files import Host

# containerd's own, the one that dockerd starts where the node has none, and that of k3s and RKE2.
STATES: Final = {
    PurePosixPath("/run/containerd"): "containerd",
    PurePosixPath("/run/docker/containerd/daemon"): "containerd",
    PurePosixPath("/run/k3s/containerd"): "k3s",
}
TASKS: Final = "io.containerd.runtime.v2.task"
DOCKER_NAMESPACE: Final = "moby"
CRIO_CONTAINERS: Final = PurePosixPath("/run/containers/storage/overlay-containers")
SHORT_ID: Final = 12
NOT_OPEN: Final = -1


def of_shims(
    host: Host, states: Mapping[PurePosixPath, str], binaries: frozenset[PurePosixPath]
) -> Iterator[Container]:
    """Yield the containers below containerd's state directories whose shim starts one of ``binaries``.

    ``states`` says to which engine a directory belongs, but for what is Docker's.
    A shim records the path in its bundle (engines.md 10; containerd 1.6 to 2.1, dockerd 20.10 to 28.5).
    """
    paths = {str(binary): binary for binary in binaries}
    for tasks, owner in {host.resolve(state / TASKS): name for state, name in states.items()}.items():
        for namespace in host.names(tasks):
            # A node may run thousands: the way to them is followed once, and most take one open file.
            with _opened(host.here(tasks / namespace)) as directory:
                for name in host.names(tasks / namespace):
                    binary = paths.get(_binary(directory, name))
                    if binary is not None:
                        engine = "docker" if namespace == DOCKER_NAMESPACE else owner
                        pod = _pod(_object(_bytes(directory, f"{name}/config.json")))
                        yield Container(engine, name, pod or name[:SHORT_ID], binary)


def of_crio(host: Host, handlers: frozenset[str], binary: PurePosixPath) -> Iterator[Container]:
    """Yield CRI-O's containers whose handler is one of ``handlers``; "" is the default.

    CRI does not tell the handler, the annotations of the bundle do (engines.md 11; CRI-O 1.37).
    """
    for name in host.names(CRIO_CONTAINERS):
        bundle = CRIO_CONTAINERS / name / "userdata"
        annotations = _annotations(_json(host, bundle / "config.json"))
        if annotations.get("io.kubernetes.cri-o.RuntimeHandler", "") in handlers and annotations:
            pod = annotations.get("io.kubernetes.pod.name", name[:SHORT_ID])
            space = annotations.get("io.kubernetes.pod.namespace", "-")
            yield Container("crio", name, f"{space}/{pod}", binary)


@contextmanager
def _opened(here: Path) -> Iterator[int]:
    """Hold a directory open for the block; where it has gone meanwhile, nothing is found below it."""
    try:
        directory = os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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


def _json(host: Host, path: PurePosixPath) -> dict[str, Any]:
    try:
        file = host.read(path) if host.kind(path) is Kind.FILE else None
    except InstallerError:  # the container has gone meanwhile
        return {}
    return _object(file.content if file else b"")
