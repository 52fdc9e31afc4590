"""Test containers for verify, by Docker: the node's own shell on the runtime to be verified."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from installer.engines.engine_api import RunScript
from installer.engines.node_shell import LAST_LINES, RETRY_S, WAITS, Tools, explain_end, refuse_ended
from installer.errors import InstallerError
from installer.host.sockets import AnswerError

if TYPE_CHECKING:
    from installer.engines.docker.client import Client

EMPTY_ARCHIVE: Final = bytes(1024)  # a tar archive without a file: the shell comes by mounts


@contextmanager
def docker_container(  # noqa: PLR0913 - a container has many sides
    socket: Path, name: str, runtime: str, tools: Tools, environment: Mapping[str, str], *, timeout_s: float
) -> Iterator[tuple[str, RunScript]]:
    """Run a container of a new name on ``runtime``; yield the id, and a function that runs scripts."""
    from docker.errors import APIError
    from docker.types import LogConfig, Mount

    try:
        with _connected(socket, "run", timeout_s) as client:
            client.import_image_from_data(EMPTY_ARCHIVE, repository=name, tag="1")
            mounts = [Mount(str(inside), str(at), type="bind", read_only=True) for at, inside in tools.files]
            host_config = client.create_host_config(
                runtime=runtime,
                network_mode="none",
                mounts=mounts,
                # Its own log, whatever the default of the node: for a container that ends at once.
                log_config=LogConfig(type="json-file", config={"max-size": "64k"}),
                security_opt=["label=disable"],
            )
            made = client.create_container(
                f"{name}:1",
                tools.command(WAITS),
                name=name,
                environment=dict(environment),
                host_config=host_config,
                # A terminal without input: reading from it waits.
                stdin_open=True,
                tty=True,
            )["Id"]
            client.start(made)

            def run(script: str) -> str:
                try:
                    asked = client.exec_create(made, tools.command(script))["Id"]
                    return client.exec_start(asked).decode(errors="replace")
                except APIError:
                    refuse_ended(lambda: _find_end(client, made))
                    raise

            yield made, run
    finally:
        remove_containers(socket, name, timeout_s=timeout_s)


def _find_end(client: "Client", container_id: str) -> InstallerError | None:
    """Explain the end of a container that has ended by itself."""
    state = client.inspect_container(container_id)["State"]
    if state["Running"]:
        return None
    reason = "no memory was left for it" if state["OOMKilled"] else state["Error"]
    output = client.logs(container_id, tail=LAST_LINES).decode(errors="replace")
    return explain_end(state["ExitCode"], reason, output)


def remove_containers(socket: Path, name: str, *, timeout_s: float) -> list[str]:
    """Remove the container and the image of a name; return the kinds of the removed things."""
    from docker.errors import APIError, NotFound

    removed: list[str] = []
    deadline = time.monotonic() + timeout_s - 1
    with _connected(socket, "remove", timeout_s) as client:
        with suppress(NotFound):
            client.inspect_container(name)
            removed.append("container")
            while True:
                try:
                    client.remove_container(name, force=True)
                    break
                except APIError as error:  # in removal, or dockerd has not seen the container's end yet
                    if isinstance(error, NotFound) or time.monotonic() > deadline:
                        raise
                    time.sleep(RETRY_S)
        with suppress(NotFound):
            client.remove_image(f"{name}:1", force=True)
            removed.append("image")
    return removed


@contextmanager
def _connected(socket: Path, verb: str, timeout_s: float) -> Iterator["Client"]:
    from docker.errors import DockerException

    from installer.engines.docker.client import Client

    try:
        with Client(socket, timeout_s) as client:
            yield client
    except (DockerException, OSError, AnswerError) as error:
        words = str(getattr(error, "explanation", None) or error)[:500]
        problem = f"{verb} a container by the dockerd on {socket} ({words})"
        raise InstallerError(problem, remedy="see the log of dockerd", code="verify-failed") from error
