"""Questions to the running dockerd, whose runtimes may differ from daemon.json."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from installer.engines.docker.config import read_info
from installer.engines.engine_api import KeptContainer, NotServedError
from installer.errors import InstallerError
from installer.model.effective import Answer

if TYPE_CHECKING:
    from installer.engines.docker.client import Client


def ask_info(address: Path, *, timeout_s: float) -> Answer:
    """Ask dockerd for its runtimes and settings.

    Raises:
        NotServedError: Podman, the dockerd of the snap, or a rootless dockerd answers.
    """
    with _understood(address, timeout_s) as client:
        answer = client.info()
        without = "takes GPUs by CDI, without a runtime of ours"
        if "Libpod-Api-Version" in client.answer.headers:
            reason = f"Podman answers on {address}, and reads no daemon.json"
            raise _not_served(reason, f"; Podman {without}")
        if "name=rootless" in (answer.get("SecurityOptions") or ()):
            reason = f"the dockerd on {address} is rootless, its config is in its user's home"
            raise _not_served(reason, f"; rootless Docker {without}")
        if str(answer.get("DockerRootDir", "")).startswith("/var/snap/"):
            reason = f"the dockerd on {address} is that of the snap, which does not see our files"
            raise _not_served(reason, ", or install Docker from a package")

        return Answer(read_info(answer), answer["ServerVersion"])


def _not_served(reason: str, remedy: str) -> NotServedError:
    return NotServedError("Docker", reason, remedy=f"leave docker out of --runtime{remedy}")


def reloads_since(socket_path: Path, moment_s: float, *, timeout_s: float) -> int:
    """Count the reloads completed by dockerd since a moment of the wall clock."""
    window = {"since": f"{moment_s:.9f}", "until": f"{time.time():.9f}"}
    # A failed reload is no event (engine-facts.md#dockerd-reload-event).
    wanted = json.dumps({"type": ["daemon"], "event": ["reload"]})
    with _understood(socket_path, timeout_s) as client:
        # Not by the SDK's events(), which knows no deadline.
        answer = client.get(f"{client.base_url}/events", params={**window, "filters": wanted})
        answer.raise_for_status()
        return len(answer.content.splitlines())


def list_containers(socket_path: Path, *, timeout_s: float) -> tuple[KeptContainer, ...]:
    """Return all containers of dockerd, stopped containers included."""
    containers = []
    with _understood(socket_path, timeout_s) as client:
        from docker.errors import APIError

        for listed in client.containers(all=True):
            try:
                container = client.inspect_container(listed["Id"])
            except APIError:  # removed meanwhile
                continue
            containers.append(
                KeptContainer(
                    name=container["Name"].lstrip("/"),
                    runtime=container["HostConfig"].get("Runtime") or "",
                    running=bool(container["State"]["Running"]),
                    restarting=bool(container["State"]["Restarting"]),
                    id=container["Id"],
                )
            )
    return tuple(containers)


def list_running_names(socket_path: Path, *, timeout_s: float) -> tuple[str, ...]:
    """Return the names of the running containers, paused and restarting containers included."""
    with _understood(socket_path, timeout_s) as client:
        names = [listed["Names"][0].lstrip("/") for listed in client.containers()]
    return tuple(sorted(names))


@contextmanager
def _understood(address: Path, timeout_s: float) -> Iterator["Client"]:
    """Yield a client of dockerd with a single deadline for all questions.

    Raises:
        InstallerError: dockerd does not answer, or the answer is not understood.
    """
    try:
        address.lstat()  # on a node without Docker the SDK is not loaded
        from installer.engines.docker.client import Client

        with Client(address, timeout_s) as client:
            yield client
    except TimeoutError as error:
        problem = f"get an answer from dockerd on {address} within {timeout_s:g} s"
        remedy = "check that dockerd is well"
        raise InstallerError(problem, remedy=remedy, code="engine-not-answering") from error
    except (AttributeError, KeyError, RecursionError, TypeError, json.JSONDecodeError) as error:
        problem = f"understand what answers on {address} ({error!r})"
        remedy = "check that it is dockerd's socket"
        raise InstallerError(problem, remedy=remedy, code="engine-unknown") from error
    except (OSError, ValueError) as error:
        answer = getattr(error, "response", None)
        reason = error if answer is None else f"{answer.status_code} {answer.reason}"
        problem = f"ask dockerd on {address} ({reason})"
        remedy = "check that dockerd runs and that this is its socket"
        raise InstallerError(problem, remedy=remedy, code="engine-not-answering") from error
