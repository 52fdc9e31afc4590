"""Calls of CRI to containerd or CRI-O, and the engine's answer about its config in force."""

import json
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from installer.engines import CONTAINERD, ENGINES
from installer.errors import InstallerError
from installer.host.sockets import AnswerError, StatusError, ask_http, call_grpc, connectable
from installer.model.effective import Answer
from installer.model.protobuf import Schema, unpack

_PLUGINS = "/containerd.services.introspection.v1.Introspection/Plugins"
_VERBOSE = b"\x08\x01"  # StatusRequest{verbose: true}
CREATED = b"\x0a\x02\x12\x00"  # ListContainersRequest{filter{state{CONTAINER_CREATED = 0}}}

_ABOUT: Schema = {2: ("name", str), 3: ("version", str)}
_CONDITION: Schema = {1: ("type", str), 2: ("holds", int)}
_STATUS: Schema = {1: ("status", {1: ("conditions", [_CONDITION])}), 2: ("info", dict)}
_LISTED: Schema = {1: ("listed", [{1: ("id", str)}])}
SANDBOXES: Schema = {1: ("sandboxes", [{1: ("id", str), 2: ("metadata", {1: ("name", str)})}])}
_PLUGIN: Schema = {1: ("type", str), 2: ("id", str), 7: ("error", {2: ("message", str)})}


def ask_status(socket_path: Path, *, timeout_s: float) -> Answer:
    """Ask the engine for its config in force.

    CRI-O answers rightly only if not reloaded since its start (engine-facts.md#crio-reload).

    Raises:
        InstallerError: the engine does not tell; the error's code has the reason.
    """
    with open_calls(socket_path, timeout_s) as engine:
        about = engine.call("Version", answer=_ABOUT)
        answer = engine.call("Status", _VERBOSE, _STATUS)
    name = about["name"]
    pause_image = ""
    with _understood(socket_path):
        if name == "cri-o":
            # Every version answers the question of `crio status config`. Status does not contain the config,
            # or from 1.33 on contains an object in Go's own names (cri-o commit dd38a18058).
            config = tomllib.loads(_crio_config(socket_path, engine.left_s()))
            serving = ENGINES["crio"].read_status(config)
            pause_image = config["crio"].get("image", {}).get("pause_image", "")
        elif name:
            serving = CONTAINERD.read_status(json.loads(answer["info"].get("config", "{}")))
        else:
            raise ValueError("an engine without a name")
    ready = {"type": "RuntimeReady", "holds": 1} in answer["status"]["conditions"]
    return Answer(replace(serving, ready=ready), about["version"], name, pause_image)


def list_ids(socket_path: Path, method: str, request: bytes = b"", *, timeout_s: float) -> tuple[str, ...]:
    """List the ids in the answer of a CRI method like ``ListPodSandbox``; raises as ``ask_status``."""
    with open_calls(socket_path, timeout_s) as engine:
        answer = engine.call(method, request, _LISTED)
    return tuple(listed["id"] for listed in answer["listed"])


class Calls:
    """Calls of the RuntimeService in protobuf's bytes, on a single socket, with a single deadline for all."""

    def __init__(self, path: str, socket_path: Path, timeout_s: float) -> None:
        self._path = path
        self._socket_path = socket_path
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds until the deadline, at least 0.001."""
        return max(self._deadline - time.monotonic(), 0.001)

    def call(
        self, method: str, request: bytes = b"", answer: Schema = MappingProxyType({})
    ) -> dict[str, Any]:
        """Return the fields of the schema ``answer`` in a method's answer; raises as ``ask_status``."""
        content = self._ask(f"/runtime.v1.RuntimeService/{method}", request)
        if content is None:
            raise self._without_cri()
        with _understood(self._socket_path):
            return unpack(answer, content)

    def _without_cri(self) -> InstallerError:
        """Explain why the engine serves no CRI, by the plugins of containerd's CRI."""
        path = self._socket_path
        content = self._ask(_PLUGINS, b"")
        if content is None:
            remedy = "check that it is the engine's socket"
            return InstallerError(f"find CRI on {path}", remedy=remedy, code="engine-unknown")
        with _understood(path):
            listed = unpack({1: ("plugins", [_PLUGIN])}, content)["plugins"]
        errors = {f"{each['type']}.{each['id']}": each["error"]["message"] for each in listed}
        return CONTAINERD.explain_missing_cri(str(path), errors)

    def _ask(self, method: str, request: bytes) -> bytes | None:
        """Return the answer of the engine as raw protobuf; None if the engine does not know the method."""
        try:
            return call_grpc(self._path, method, request, timeout_s=self.left_s())
        except TimeoutError as error:
            raise _not_answering(self._socket_path, f"no answer within {self._timeout_s:g} s") from error
        except OSError as error:
            raise _not_answering(self._socket_path, error) from error
        except StatusError as error:
            if error.code == "UNIMPLEMENTED":
                return None
            if error.code in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}:
                raise _not_answering(self._socket_path, error.words) from error
            problem = f"ask the engine on {self._socket_path} ({error})"
            remedy = "see the engine's log"
            raise InstallerError(problem, remedy=remedy, code="engine-not-answering") from error


def _not_answering(socket_path: Path, reason: object) -> InstallerError:
    remedy = "check that it runs and that this is its socket"
    return InstallerError(
        f"reach the engine on {socket_path} ({reason})", remedy=remedy, code="engine-not-answering"
    )


@contextmanager
def open_calls(socket_path: Path, timeout_s: float) -> Iterator[Calls]:
    """Yield calls of CRI on a socket, with a single deadline for all."""
    with connectable(socket_path) as path:
        yield Calls(path, socket_path, timeout_s)


@contextmanager
def _understood(socket_path: Path) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        problem = f"understand what answers on {socket_path} ({error!r})"
        remedy = "check that it is the engine's socket"
        raise InstallerError(problem, remedy=remedy, code="engine-unknown") from error


def _crio_config(here: Path, timeout_s: float) -> str:
    try:
        head, body = ask_http(here, ("GET", "/config", None, {}), deadline=time.monotonic() + timeout_s)
    except OSError as error:
        raise _not_answering(here, error) from error
    if head.status != HTTPStatus.OK:
        raise AnswerError(f"{head.status} {head.reason}"[:100])
    return body.decode()
