"""What the running dockerd says it can start, which is not always what daemon.json says."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from installer.decide.errors import InstallerError
from installer.host import http


@dataclass(frozen=True, slots=True)
class DockerInfo:
    """What dockerd serves now; ``runtimes`` maps a name to a path, "" if it is given by type, not by path."""

    runtimes: Mapping[str, str]
    default_runtime: str
    version: str
    live_restore: bool
    cdi_spec_dirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DockerContainer:
    """One container; ``runtime`` is the name it was created with, the default's included."""

    id: str
    name: str
    runtime: str
    running: bool


def info(socket_path: Path, *, timeout_s: float) -> DockerInfo:
    """Ask dockerd what it serves.

    Raises:
        InstallerError: it cannot be reached, does not answer in time, or not like a dockerd.
    """
    with _understood(socket_path, timeout_s) as deadline:
        answer = json.loads(http.get(socket_path, "/info", deadline=deadline))
        return DockerInfo(
            runtimes={name: runtime.get("path") or "" for name, runtime in answer["Runtimes"].items()},
            default_runtime=answer["DefaultRuntime"],
            version=answer["ServerVersion"],
            live_restore=answer["LiveRestoreEnabled"],
            cdi_spec_dirs=tuple(answer.get("CDISpecDirs") or ()),  # 20.10 has none
        )


def reloads_since(socket_path: Path, moment_s: float, *, timeout_s: float) -> int:
    """Return how many reloads dockerd has completed since ``moment_s``, in seconds of the wall clock.

    A reload is asynchronous, and one that fails is only in dockerd's log; each that succeeds is an
    event (seen with 20.10.24, 26.1.5 and 28.5.2).

    Raises:
        InstallerError: as ``info``.
    """
    wanted = quote(json.dumps({"type": ["daemon"], "event": ["reload"]}))
    window = f"since={moment_s:.9f}&until={time.time():.9f}"
    with _understood(socket_path, timeout_s) as deadline:
        events = http.get(socket_path, f"/events?{window}&filters={wanted}", deadline=deadline)
        return len(events.splitlines())


def containers(socket_path: Path, *, timeout_s: float) -> tuple[DockerContainer, ...]:
    """Return all containers, the stopped ones included.

    Raises:
        InstallerError: as ``info``.
    """
    found = []
    with _understood(socket_path, timeout_s) as deadline:
        for listed in json.loads(http.get(socket_path, "/containers/json?all=1", deadline=deadline)):
            try:
                path = f"/containers/{quote(listed['Id'], safe='')}/json"
                said = json.loads(http.get(socket_path, path, deadline=deadline))
            except http.AnswerError:  # removed meanwhile
                continue
            runtime, running = said["HostConfig"].get("Runtime") or "", bool(said["State"]["Running"])
            found.append(DockerContainer(said["Id"], said["Name"].lstrip("/"), runtime, running))
    return tuple(found)


@contextmanager
def _understood(socket_path: Path, timeout_s: float) -> Iterator[float]:
    """Yield the deadline for all that is asked; whatever goes wrong becomes an InstallerError."""
    try:
        yield time.monotonic() + timeout_s
    except TimeoutError as error:
        raise InstallerError(
            f"get an answer from dockerd on {socket_path} within {timeout_s:g} s",
            remedy="check that dockerd is well",
        ) from error
    except (OSError, http.AnswerError) as error:
        raise InstallerError(
            f"ask dockerd on {socket_path} ({error})",
            remedy="check that dockerd runs and that this is its socket",
        ) from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InstallerError(
            f"understand what answers on {socket_path} ({error!r})",
            remedy="check that it is dockerd's socket",
        ) from error
