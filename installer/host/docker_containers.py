"""A container of Docker's on an image that has nothing in it; both are gone when the block is left."""

import io
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from installer.decide.errors import InstallerError
from installer.decide.verify import WAITS, Exec, Tools

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

RETRY_S: Final = 0.2


@contextmanager
def container(  # noqa: PLR0913 - a container has many sides
    socket: Path, name: str, runtime: str, tools: Tools, environment: Mapping[str, str], *, timeout_s: float
) -> Iterator[tuple[str, Exec]]:
    """Run a container of a new name on ``runtime``; yield its id, and how to run a script in it.

    Raises:
        InstallerError: dockerd refuses, or does not answer in time; nothing is left, as far as it lets us.
    """
    with _connected(socket, "run", timeout_s) as client:
        try:
            client.api.import_image_from_data(_nothing(), repository=name, tag="1")
            with _running(client, name, runtime, tools, environment) as found:
                yield found
        finally:
            _remove_named(client, name, timeout_s)


def remove(socket: Path, name: str, *, timeout_s: float) -> list[str]:
    """Remove the container and the image of a name; return what was there of them.

    Raises:
        InstallerError: dockerd refuses, or does not answer in time.
    """
    with _connected(socket, "remove", timeout_s) as client:
        return _remove_named(client, name, timeout_s)


@contextmanager
def _connected(socket: Path, verb: str, timeout_s: float) -> Iterator["docker.DockerClient"]:
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = docker.DockerClient(base_url=f"unix://{socket}", version="auto", timeout=int(timeout_s))
        try:
            yield client
        finally:
            client.close()
    except (DockerException, RequestException) as error:
        raise InstallerError(
            f"{verb} a container by the dockerd on {socket} ({_words(error)})",
            remedy="see the log of dockerd",
            code="verify-failed",
        ) from error


@contextmanager
def _running(
    client: "docker.DockerClient", name: str, runtime: str, tools: Tools, environment: Mapping[str, str]
) -> Iterator[tuple[str, Exec]]:
    from docker.types import LogConfig, Mount

    made = client.containers.create(
        f"{name}:1",
        tools.command(WAITS),
        name=name,
        runtime=runtime,
        environment=dict(environment),
        network_mode="none",
        mounts=[Mount(str(inside), str(there), type="bind", read_only=True) for there, inside in tools.files],
        log_config=LogConfig(type="none"),
        security_opt=["label=disable"],
        # A terminal that nobody types at: reading from it waits.
        stdin_open=True,
        tty=True,
    )
    made.start()

    def run(script: str) -> str:
        said = made.exec_run(tools.command(script)).output
        return said.decode(errors="replace") if isinstance(said, bytes) else ""

    yield str(made.id), run


def _remove_named(client: "docker.DockerClient", name: str, timeout_s: float) -> list[str]:
    from docker.errors import NotFound

    removed = []
    with suppress(NotFound):
        _remove(client.containers.get(name), time.monotonic() + timeout_s)
        removed.append("container")
    with suppress(NotFound):
        client.images.remove(f"{name}:1", force=True)
        removed.append("image")
    return removed


def _remove(made: "Container", deadline: float) -> None:
    """Remove a container; dockerd refuses while it is being removed, or where it has not seen its end yet."""
    from docker.errors import APIError, NotFound

    while True:
        try:
            made.remove(force=True)
        except NotFound:
            return
        except APIError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
        else:
            return


def _nothing() -> bytes:
    """Return an archive without a file: the shell comes by mounts."""
    import tarfile  # needed by verify alone, and this module by each uninstall and install

    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w"):
        pass
    return written.getvalue()


def _words(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)
    return str(explanation or error)[:500]
