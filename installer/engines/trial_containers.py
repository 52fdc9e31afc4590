"""The node's shell and what it links to, enough for a container without an image; which files were opened."""

import json
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from installer.engines import cri
from installer.engines.cri import SANDBOXES, Calls, NotAnsweringError, calling
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.programs import run_in
from installer.host.sockets import AnswerError
from installer.model.protobuf import Schema, message

if TYPE_CHECKING:
    import docker

MARK: Final = "toolkit-installer-verify"  # with which the name of all begins that is made here
DIRECTORY: Final = PurePosixPath("/verify")  # in the container: the shell of the node and what it links to
SHELL: Final = DIRECTORY / "sh"
LOADER: Final = DIRECTORY / "ld"
WAITS: Final = "read x"  # a word of the shell: there is nothing else in the container
ROOT: Final = PurePosixPath("/")
SH: Final = PurePosixPath("/bin/sh")
ASK_S: Final = 5.0
ELF64: Final = b"\x7fELF\x02\x01"
HEADER: Final = struct.Struct("<16xHHIQQQIHHH")  # to e_phnum
SEGMENT: Final = struct.Struct("<IIQQQQQQ")
PT_INTERP: Final = 3
_LINKED: Final = re.compile(r"^\s+(\S+) => (/\S+) \(0x", re.MULTILINE)
IN_OPEN: Final = 0x20
IN_ONESHOT: Final = 0x80000000
_WATCH: Final = re.compile(r"^inotify wd:([0-9a-f]+)", re.MULTILINE)


Exec: TypeAlias = Callable[[str], str]  # runs a script in the container, returns what it printed


class Tools(Struct, frozen=True):
    """Files of the node in the container, each with its path there; ``loader`` tells that one is a loader."""

    files: tuple[tuple[PurePosixPath, PurePosixPath], ...]
    loader: bool

    def command(self, script: str) -> list[str]:
        """Return the words that run ``script`` in the container."""
        words = [str(LOADER), "--library-path", str(DIRECTORY)] if self.loader else []
        return [*words, str(SHELL), "-c", script]


def shell_of(host: Host) -> Tools:
    """Return the files that the node's shell consists of.

    Raises:
        InstallerError: the node has no shell that could be used.
    """
    path = host.resolve(SH)
    file = host.read(path)
    if file is None:
        raise _unusable(f"{SH} is not there")
    if not file.content.startswith(ELF64):
        raise _unusable(f"{path} is no program of 64 bits")
    loader = interpreter(file.content)
    if loader is None:
        return Tools(((path, SHELL),), loader=False)
    ran = run_in(host.local_path(ROOT), [str(loader), "--list", str(path)], timeout_s=ASK_S)
    if ran is None or ran.returncode:
        raise _unusable(f"{loader} does not tell what {path} links to")
    linked = dict(_LINKED.findall(ran.stdout))
    files = [(host.resolve(PurePosixPath(there)), DIRECTORY / name) for name, there in linked.items()]
    return Tools(((path, SHELL), (host.resolve(loader), LOADER), *files), loader=True)


def interpreter(content: bytes) -> PurePosixPath | None:
    """Return the dynamic loader that a program names; None for a static one.

    Raises:
        InstallerError: the file is cut short.
    """
    try:
        _, _, _, _, first, _, _, _, size, count = HEADER.unpack_from(content)
        for number in range(count):
            kind, _, offset, _, _, length, _, _ = SEGMENT.unpack_from(content, first + number * size)
            if kind == PT_INTERP:
                return PurePosixPath(content[offset : offset + length].rstrip(b"\0").decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise _unusable("it is no whole program") from error
    return None


def _unusable(reason: str) -> InstallerError:
    return InstallerError(
        f"make a container of what the node has ({reason})",
        remedy="run a GPU pod of your own instead",
        code="verify-failed",
    )


@contextmanager
def opens(files: Iterable[Path]) -> Iterator[Callable[[], frozenset[Path]]]:
    """Watch files for the block; yield what returns which of them somebody has opened so far.

    The kernel forgets a watch of one shot when it has fired, and lists the others (proc(5)). A file that
    cannot be watched is never called opened.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0:  # no instance left: nobody can tell
        yield frozenset
        return
    try:
        watched = {
            each: libc.inotify_add_watch(fd, os.fsencode(each), IN_OPEN | IN_ONESHOT) for each in files
        }

        def opened() -> frozenset[Path]:
            left = {int(number, 16) for number in _WATCH.findall(Path(f"/proc/self/fdinfo/{fd}").read_text())}
            return frozenset(file for file, number in watched.items() if number >= 0 and number not in left)

        yield opened
    finally:
        os.close(fd)


RETRY_S: Final = 0.2
NOTHING: Final = bytes(1024)  # a tar archive without a file: the shell comes by mounts


@contextmanager
def docker_container(  # noqa: PLR0913 - a container has many sides
    socket: Path, name: str, runtime: str, tools: Tools, environment: Mapping[str, str], *, timeout_s: float
) -> Iterator[tuple[str, Exec]]:
    """Run a container of a new name on ``runtime``; yield its id, and how to run a script in it.

    Raises:
        InstallerError: dockerd refuses, or does not answer in time; nothing is left, as far as it lets us.
    """
    from docker.types import LogConfig, Mount

    try:
        with _connected(socket, "run", timeout_s) as client:
            client.api.import_image_from_data(NOTHING, repository=name, tag="1")
            made = client.containers.create(
                f"{name}:1",
                tools.command(WAITS),
                name=name,
                runtime=runtime,
                environment=dict(environment),
                network_mode="none",
                mounts=[
                    Mount(str(inside), str(at), type="bind", read_only=True) for at, inside in tools.files
                ],
                log_config=LogConfig(type="none"),
                security_opt=["label=disable"],
                # A terminal that nobody types at: reading from it waits.
                stdin_open=True,
                tty=True,
            )
            made.start()

            def run(script: str) -> str:
                asked = client.api.exec_create(str(made.id), tools.command(script))["Id"]
                return client.api.exec_start(asked).decode(errors="replace")

            yield str(made.id), run
    finally:
        remove_containers(socket, name, timeout_s=timeout_s)


def remove_containers(socket: Path, name: str, *, timeout_s: float) -> list[str]:
    """Remove the container and the image of a name; return what was there of them.

    Raises:
        InstallerError: dockerd refuses, or does not answer in time.
    """
    from docker.errors import APIError, NotFound

    removed, until = [], time.monotonic() + timeout_s - 1
    with _connected(socket, "remove", timeout_s) as client:
        with suppress(NotFound):
            made = client.containers.get(name)
            removed.append("container")
            while True:
                try:
                    made.remove(force=True)
                    break
                except APIError as error:  # it is being removed, or dockerd has not seen its end yet
                    if isinstance(error, NotFound) or time.monotonic() > until:
                        raise
                    time.sleep(RETRY_S)
        with suppress(NotFound):
            client.images.remove(f"{name}:1", force=True)
            removed.append("image")
    return removed


@contextmanager
def _connected(socket: Path, verb: str, timeout_s: float) -> Iterator["docker.DockerClient"]:
    import docker
    from docker.errors import DockerException

    from installer.engines.docker.client import Client

    client = object.__new__(docker.DockerClient)  # its constructor makes a client of its own
    try:
        with Client(socket, timeout_s) as client.api:
            yield client
    except (DockerException, OSError, AnswerError) as error:
        words = str(getattr(error, "explanation", None) or error)[:500]
        raise InstallerError(
            f"{verb} a container by the dockerd on {socket} ({words})",
            remedy="see the log of dockerd",
            code="verify-failed",
        ) from error


NODE: Final = 2  # NamespaceMode: a network of its own would need CNI
CONTAINER: Final = 1
USER_SPECIFIED: Final = 18  # ImageSpec.user_specified_image
EXEC_S: Final = 30  # a busy node starts a process within seconds
SYSTEMD: Final = "system.slice"
ID: Final[Schema] = {1: ("id", str)}  # of what was made


@contextmanager
def cri_container(  # noqa: PLR0913 - a container has many sides
    socket: Path, name: str, handler: str, tools: Tools, environment: Mapping[str, str], *, timeout_s: float
) -> Iterator[tuple[str, Exec]]:
    """Run a container on ``handler`` in a pod of a new name; yield its id, and how to run a script in it.

    Its image is that of the pod's own sandbox, which is on the node (engine-facts.md#crio-sandbox-image).

    Raises:
        InstallerError: the engine refuses, or does not answer in time; nothing is left, as far as it lets us.
    """
    status = cri.status(socket, timeout_s=timeout_s)
    metadata = message((1, name), (2, name), (3, "default"))
    security = message((1, message((1, NODE), (2, CONTAINER))))
    runtime = status.serving.handlers.get(handler)
    # Where a kubelet would put the pod: containerd fails without a slice for systemd's cgroups.
    parent = SYSTEMD if runtime and runtime.options.get("systemdcgroup") else "/"
    linux = message((1, "" if status.name == "cri-o" else parent), (2, security))
    pod = message((1, metadata), (8, linux))
    try:
        with calling(socket, timeout_s) as engine:
            sandbox = engine.call("RunPodSandbox", message((1, pod), (2, handler)), ID)["id"]
            config = _container(status.pause_image or _image(engine, sandbox), tools, environment)
            request = message((1, sandbox), (2, config), (3, pod))
            made = engine.call("CreateContainer", request, ID)["id"]
            engine.call("StartContainer", message((1, made)))

            def run(script: str) -> str:
                words = [(2, word) for word in tools.command(script)]
                request = message((1, made), *words, (3, EXEC_S))
                return str(engine.call("ExecSync", request, {1: ("stdout", str)})["stdout"])

            yield made, run
    finally:
        # With time of its own: what was made has to go although the rest took too long.
        remove_pods(socket, name, timeout_s=timeout_s)


def remove_pods(socket: Path, name: str, *, timeout_s: float) -> list[str]:
    """Remove the pods of a name, the stopped ones included; return what was there of them.

    Raises:
        InstallerError: the engine refuses, or does not answer in time.
    """
    with calling(socket, timeout_s) as engine:
        listed = engine.call("ListPodSandbox", answer=SANDBOXES)["sandboxes"]
        found = [message((1, each["id"])) for each in listed if each["metadata"]["name"] == name]
        for request in found:
            while True:
                with suppress(InstallerError):  # removal stops what runs, too
                    engine.call("StopPodSandbox", request)
                try:
                    engine.call("RemovePodSandbox", request)
                    break
                except InstallerError as error:
                    if isinstance(error, NotAnsweringError) or engine.left_s() < 1:
                        raise
                    time.sleep(RETRY_S)
    return ["pod"] * len(found)


def _image(calls: Calls, sandbox: str) -> str:
    """Return the image that a sandbox was made of, as the engine tells."""
    answer = calls.call("PodSandboxStatus", message((1, sandbox), (2, 1)), {2: ("info", dict)})
    with suppress(ValueError, AttributeError):
        image = json.loads(answer["info"].get("info", "")).get("image")
        if isinstance(image, str) and image:
            return image
    raise InstallerError(
        "find the image of a sandbox (the engine does not tell it)",
        remedy="see its log",
        code="verify-failed",
    )


def _container(image: str, tools: Tools, environment: Mapping[str, str]) -> bytes:
    # As a kubelet does, the image as its user names it, too: a signature is verified by that name.
    named = message((1, image), (USER_SPECIFIED, image))
    words = [(3, word) for word in tools.command(WAITS)]
    variables = [(6, message(*enumerate(pair, 1))) for pair in environment.items()]
    mounts = [(7, message((1, str(inside)), (2, str(there)), (3, 1))) for there, inside in tools.files]
    terminal = [(12, 1), (14, 1)]  # that nobody types at: reading from it waits
    security = message((3, message((1, NODE), (2, CONTAINER))))
    about = ((1, message((1, MARK))), (2, named))
    return message(*about, *words, *variables, *mounts, *terminal, (15, message((2, security))))
