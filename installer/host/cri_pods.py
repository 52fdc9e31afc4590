"""A pod with one container over CRI, as a kubelet makes it, and gone when the block is left."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.verify import MARK, WAITS, Exec, Tools
from installer.host import cri
from installer.host.cri import Calls, calling, fields
from installer.host.cri_errors import NotAnsweringError

NODE: Final = 2  # NamespaceMode: a network of its own would need CNI
CONTAINER: Final = 1
USER_SPECIFIED: Final = 18  # ImageSpec.user_specified_image
EXEC_S: Final = 30  # a busy node starts a process within seconds
RETRY_S: Final = 0.2
SYSTEMD: Final = "system.slice"


@contextmanager
def container(  # noqa: PLR0913 - a container has many sides
    socket: Path, name: str, handler: str, tools: Tools, environment: Mapping[str, str], *, timeout_s: float
) -> Iterator[tuple[str, Exec]]:
    """Run a container on ``handler`` in a pod of a new name; yield its id, and how to run a script in it.

    Its image is that of the pod's own sandbox, which is on the node (engine-facts.md#crio-sandbox-image).

    Raises:
        InstallerError: the engine refuses, or does not answer in time; nothing is left, as far as it lets us.
    """
    status = cri.status(socket, timeout_s=timeout_s)
    pod = _pod(name, _cgroup_parent(status, handler))
    with calling(socket, timeout_s) as engine:
        sandbox = _text(engine.call("RunPodSandbox", _bytes(1, pod) + _bytes(2, handler)), 1)
        try:
            config = _container(status.pause_image or _image(engine, sandbox), tools, environment)
            request = _bytes(1, sandbox) + _bytes(2, config) + _bytes(3, pod)
            made = _text(engine.call("CreateContainer", request), 1)
            engine.call("StartContainer", _bytes(1, made))

            def run(script: str) -> str:
                words = b"".join(_bytes(2, word) for word in tools.command(script))
                return _text(engine.call("ExecSync", _bytes(1, made) + words + _number(3, EXEC_S)), 1)

            yield made, run
        finally:
            # With time of its own: what was made has to go although the rest took too long.
            with calling(socket, timeout_s) as again:
                _remove(again, sandbox)


def remove(socket: Path, name: str, *, timeout_s: float) -> list[str]:
    """Remove the pods of a name, the stopped ones included; return what was there of them.

    Raises:
        InstallerError: the engine refuses, or does not answer in time.
    """
    removed = []
    with calling(socket, timeout_s) as engine:
        for field, pod in fields(engine.call("ListPodSandbox", b"")):
            if field == 1 and _text(dict(fields(pod)).get(2, b""), 1) == name:  # its metadata
                _remove(engine, _text(pod, 1))
                removed.append("pod")
    return removed


def _remove(engine: Calls, sandbox: str) -> None:
    """Stop and remove a pod; containerd refuses for some seconds while one of its containers is starting."""
    while True:
        with suppress(InstallerError):  # removal stops what runs, too
            engine.call("StopPodSandbox", _bytes(1, sandbox))
        try:
            engine.call("RemovePodSandbox", _bytes(1, sandbox))
        except NotAnsweringError:
            raise
        except InstallerError:
            if engine.left_s() < 1:
                raise
            time.sleep(RETRY_S)
        else:
            return


def _cgroup_parent(status: cri.CriStatus, handler: str) -> str:
    """Return where a kubelet would put the pod: containerd fails without a slice for systemd's cgroups."""
    if status.name == "cri-o":
        return ""
    found = status.serving.handlers.get(handler)
    options = found.table.get("options") if found else None
    spelled = {key.lower(): value for key, value in options.items()} if isinstance(options, Mapping) else {}
    return SYSTEMD if spelled.get("systemdcgroup") else "/"


def _pod(name: str, cgroup_parent: str) -> bytes:
    metadata = _bytes(1, name) + _bytes(2, name) + _bytes(3, "default")
    security = _bytes(1, _number(1, NODE) + _number(2, CONTAINER))
    linux = (_bytes(1, cgroup_parent) if cgroup_parent else b"") + _bytes(2, security)
    return _bytes(1, metadata) + _bytes(8, linux)


def _image(engine: Calls, sandbox: str) -> str:
    """Return the image that a sandbox was made of, as the engine tells."""
    answer = engine.call("PodSandboxStatus", _bytes(1, sandbox) + _number(2, 1))
    for field, entry in fields(answer):
        if field == 2 and _text(entry, 1) == "info":  # noqa: PLR2004 - PodSandboxStatusResponse.info
            with suppress(ValueError):
                image = json.loads(_text(entry, 2)).get("image")
                if isinstance(image, str) and image:
                    return image
    raise InstallerError(
        "find the image of a sandbox (the engine does not tell it)",
        remedy="see its log",
        code="verify-failed",
    )


def _container(image: str, tools: Tools, environment: Mapping[str, str]) -> bytes:
    # As a kubelet does, the image as its user names it, too: a signature is verified by that name.
    config = _bytes(1, _bytes(1, MARK)) + _bytes(2, _bytes(1, image) + _bytes(USER_SPECIFIED, image))
    config += b"".join(_bytes(3, word) for word in tools.command(WAITS))
    config += b"".join(_bytes(6, _bytes(1, name) + _bytes(2, value)) for name, value in environment.items())
    for there, inside in tools.files:
        config += _bytes(7, _bytes(1, str(inside)) + _bytes(2, str(there)) + _number(3, 1))
    # A terminal that nobody types at: reading from it waits.
    config += _number(12, 1) + _number(14, 1)
    security = _bytes(3, _number(1, NODE) + _number(2, CONTAINER))
    return config + _bytes(15, _bytes(2, security))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits each
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _bytes(field: int, value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(message: bytes, field: int) -> str:
    found = dict(fields(message)).get(field, b"")
    return found.decode(errors="replace") if isinstance(found, bytes) else ""
