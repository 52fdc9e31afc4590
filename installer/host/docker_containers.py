"""A container of Docker's on an image that has nothing in it; both are gone when the block is left."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from installer.decide.errors import InstallerError
from installer.decide.verify import WAITS, Exec, Tools
from installer.host.http import AnswerError

if TYPE_CHECKING:
    import docker

RETRY_S: Final = 0.2
NOTHING: Final = bytes(1024)  # a tar archive without a file: the shell comes by mounts


@contextmanager
def container(  # noqa: PLR0913 - a container has many sides
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
            with _connected(socket, "run", timeout_s) as client:
                asked = client.api.exec_create(str(made.id), tools.command(script))["Id"]
                said = client.api.exec_start(asked)
            return said.decode(errors="replace")

        yield str(made.id), run
    finally:
        remove(socket, name, timeout_s=timeout_s)


def remove(socket: Path, name: str, *, timeout_s: float) -> list[str]:
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

    from installer.host.docker_api import Client

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
