"""What the running dockerd says it can start, which is not always what daemon.json says."""

import json
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import quote

from installer.decide.effect import Effect, Handler
from installer.decide.errors import InstallerError

PODMAN: Final = "Libpod-Api-Version"  # in the header of each answer of Podman's


class NotServedError(InstallerError):
    """It is not the host's own dockerd that answers Docker's API; ``reason`` says who does."""

    def __init__(self, reason: str, *, remedy: str) -> None:
        super().__init__(f"configure docker ({reason})", remedy=f"leave docker out of --runtime{remedy}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class DockerInfo:
    """What dockerd serves now; the binary of a runtime is "" if it is given by type, not by path."""

    serving: Effect
    version: str


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
        NotServedError: it is Podman, rootless, or the snap.
        InstallerError: it cannot be reached, does not answer in time, or not like a dockerd.
    """
    said = _get(socket_path, "/info", timeout_s)
    try:
        answer = said.json()
        _refuse_others(socket_path, said.headers, answer)
        return DockerInfo(
            serving=Effect(
                {
                    # ``status`` is what the program says of itself, and no setting.
                    name: Handler(
                        runtime.get("path") or "", {k: v for k, v in runtime.items() if k != "status"}
                    )
                    for name, runtime in answer["Runtimes"].items()
                },
                answer["DefaultRuntime"],
                # 20.10 has no such key, nor CDI.
                cdi=bool(answer["CDISpecDirs"]) if "CDISpecDirs" in answer else None,
            ),
            version=answer["ServerVersion"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InstallerError(
            f"understand what answers on {socket_path} ({error!r})",
            remedy="check that it is dockerd's socket",
        ) from error


def _refuse_others(socket_path: Path, headers: Mapping[str, str], answer: Mapping[str, Any]) -> None:
    """Raise where it is not a dockerd of the host's own that answers."""
    without = "takes GPUs by CDI, without a runtime of ours"
    if PODMAN in headers:
        reason = f"Podman answers on {socket_path}, and reads no daemon.json"
        raise NotServedError(reason, remedy=f"; Podman {without}")
    if "name=rootless" in (answer.get("SecurityOptions") or ()):
        reason = f"the dockerd on {socket_path} is rootless, its config is in its user's home"
        raise NotServedError(reason, remedy=f"; rootless Docker {without}")
    if str(answer.get("DockerRootDir", "")).startswith("/var/snap/"):
        reason = f"the dockerd on {socket_path} is that of the snap, which does not see our files"
        raise NotServedError(reason, remedy=", or install Docker from a package")


def reloads_since(socket_path: Path, moment_s: float, *, timeout_s: float) -> int:
    """Return how many reloads dockerd has completed since ``moment_s``, in seconds of the wall clock.

    A reload is asynchronous, and one that fails is only in dockerd's log; each that succeeds is an
    event (seen with 20.10.24, 26.1.5 and 28.5.2).

    Raises:
        InstallerError: as ``info``.
    """
    wanted = quote(json.dumps({"type": ["daemon"], "event": ["reload"]}))
    window = f"since={moment_s:.9f}&until={time.time():.9f}"
    return len(_get(socket_path, f"/events?{window}&filters={wanted}", timeout_s).text.splitlines())


def containers(socket_path: Path, *, timeout_s: float) -> tuple[DockerContainer, ...]:
    """Return all containers, the stopped ones included.

    Raises:
        InstallerError: as ``info``.
    """

    def ask(get: Callable[[str], Any]) -> tuple[DockerContainer, ...]:
        found = []
        for listed in get("/containers/json?all=1").json():
            try:
                said = get(f"/containers/{listed['Id']}/json").json()
            except OSError:  # removed meanwhile
                continue
            runtime, running = said["HostConfig"].get("Runtime") or "", bool(said["State"]["Running"])
            found.append(DockerContainer(said["Id"], said["Name"].lstrip("/"), runtime, running))
        return tuple(found)

    try:
        found: tuple[DockerContainer, ...] = _ask(socket_path, ask, timeout_s)
    except (AttributeError, KeyError, TypeError) as error:
        raise InstallerError(
            f"understand what answers on {socket_path} ({error!r})",
            remedy="check that it is dockerd's socket",
        ) from error
    return found


def _get(socket_path: Path, path: str, timeout_s: float) -> Any:
    return _ask(socket_path, lambda get: get(path), timeout_s)


def _ask(socket_path: Path, question: Callable[[Callable[[str], Any]], Any], timeout_s: float) -> Any:
    import requests
    from docker.transport import UnixHTTPAdapter

    # The SDK's transport without its APIClient, which reads the registry passwords in ~/.docker and wants an
    # API version: none is served by both 20.10 (up to 1.41) and 29 (from 1.44), but a path without one is.
    def answer() -> Any:
        # Look first: when nobody listens, its connection leaks a descriptor and wraps the error three times.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(timeout_s)
            probe.connect(str(socket_path))
        with requests.Session() as session:
            session.trust_env = False  # no proxies, no netrc
            session.mount("http+docker://", UnixHTTPAdapter(f"http+unix://{socket_path.absolute()}"))

            def get(path: str) -> Any:
                response = session.get(f"http+docker://localhost{path}", timeout=timeout_s)
                response.raise_for_status()
                return response

            return question(get)

    try:
        return _within(timeout_s, answer)
    except TimeoutError as error:
        raise InstallerError(
            f"get an answer from dockerd on {socket_path} within {timeout_s:g} s",
            remedy="check that dockerd is well",
        ) from error
    except (OSError, ValueError) as error:  # RequestException is an OSError
        raise InstallerError(
            f"ask dockerd on {socket_path} ({error})",
            remedy="check that dockerd runs and that this is its socket",
        ) from error


def _within(timeout_s: float, call: Callable[[], Any]) -> Any:
    """Call in a thread: a timeout of requests is one per read, so half an answer would hold us longer."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            outcome.set_exception(error)

    Thread(target=run, daemon=True).start()
    return outcome.result(timeout_s)
