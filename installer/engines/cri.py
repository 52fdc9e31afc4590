"""What containerd or CRI-O serves to the kubelet, in the engine's own words over CRI."""

import json
import posixpath
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN, binary_of, drop_unasked
from installer.engines.crio.config import read_effective as crio_effect
from installer.errors import InstallerError
from installer.host import grpc
from installer.host.sockets import AnswerError, ask_http, connectable
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.protobuf import fields


class NotAnsweringError(InstallerError):
    """Nobody answers on the socket, or not in time, or not yet; asking again later may help."""

    usual = "engine-not-answering"


class CriDisabledError(InstallerError):
    """The engine runs without CRI on purpose: it does not serve a kubelet."""

    usual = "cri-disabled"


class CriFailedError(InstallerError):
    """The engine runs, but its CRI plugin did not load; ``problem`` has its words."""

    usual = "cri-failed"


_RUNTIME_SERVICE = "/runtime.v1.RuntimeService"
_PLUGINS = "/containerd.services.introspection.v1.Introspection/Plugins"
_VERBOSE = b"\x08\x01"  # StatusRequest{verbose: true}
_CREATED = b"\x0a\x02\x12\x00"  # ListContainersRequest{filter{state{CONTAINER_CREATED = 0}}}

# The plugins that make up CRI: containerd 1.x has the first only; in 2.x it serves what the others hold.
_CRI_SERVICE = V2_PLUGIN
_CRI_PARTS = (V3_PLUGIN, "io.containerd.cri.v1.images", _CRI_SERVICE)

# A plugin that chose not to load; a part of CRI that is in disabled_plugins.
_SWITCHED_OFF = ("skip plugin", "no plugins registered for io.containerd.cri.v1")


class CriStatus(Struct, frozen=True):
    """What the engine (containerd or cri-o) serves; ``version`` is its own, CRI-O's ``pause_image`` too."""

    name: str
    version: str
    serving: EffectiveConfig
    pause_image: str = ""


def status(socket_path: Path, *, timeout_s: float) -> CriStatus:
    """Ask the engine what it serves.

    CRI-O answers rightly only if it was not reloaded since its start (engine-facts.md#crio-reload).

    Raises:
        NotAnsweringError: nobody answers within ``timeout_s``.
        CriDisabledError: containerd has its CRI plugin switched off.
        CriFailedError: containerd's CRI plugin did not load.
        InstallerError: the engine refuses, or answers something else.
    """
    with calling(socket_path, timeout_s) as engine:
        about = engine.call("Version")
        answer = engine.call("Status", _VERBOSE)
    with _understood(socket_path):
        version = dict(fields(about))
        conditions = [dict(fields(part)) for overall in _all(answer, 1) for part in _all(overall, 1)]
        name, pause_image = version[2].decode(), ""
        if name == "cri-o":
            # As `crio status config` asks, which every version answers: Status has nothing of it, or from
            # 1.33 on an object in Go's own names (cri-o commit dd38a18058).
            config = tomllib.loads(_crio_config(socket_path, engine.left_s()))
            serving, pause_image = crio_effect(config), config["crio"].get("image", {}).get("pause_image", "")
        else:
            info = {text_in(part, 1): text_in(part, 2) for part in _all(answer, 2)}
            serving = _containerd_effect(json.loads(info.get("config", "{}")))
        ready = any(each.get(1) == b"RuntimeReady" and each.get(2) == 1 for each in conditions)
        return CriStatus(name, version[3].decode(), replace(serving, ready=ready), pause_image)


def unready_containers(socket_path: Path, *, timeout_s: float) -> tuple[str, ...]:
    """Return the ids of containers in state CREATED, which a restart would strand; raises as ``status``."""
    return _list_ids(socket_path, "ListContainers", _CREATED, timeout_s)


def sandboxes(socket_path: Path, *, timeout_s: float) -> tuple[str, ...]:
    """Return the ids of all pods that CRI knows; raises as ``status``."""
    return _list_ids(socket_path, "ListPodSandbox", b"", timeout_s)


def _list_ids(socket_path: Path, method: str, request: bytes, timeout_s: float) -> tuple[str, ...]:
    with calling(socket_path, timeout_s) as engine, _understood(socket_path):
        return tuple(dict(fields(part))[1].decode() for part in _all(engine.call(method, request), 1))


class Calls:
    """Calls of the RuntimeService in protobuf's bytes, on one socket, with one deadline for all."""

    def __init__(self, path: str, socket_path: Path, timeout_s: float) -> None:
        self._path, self._socket_path, self._timeout_s = path, socket_path, timeout_s
        self._deadline = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds that are left."""
        return max(self._deadline - time.monotonic(), 0.001)

    def call(self, method: str, request: bytes = b"") -> bytes:
        """Return the answer of a method; may raise as ``status`` does."""
        answer = self._ask(f"{_RUNTIME_SERVICE}/{method}", request)
        if answer is None:
            raise _without_cri(self._socket_path, self._ask(_PLUGINS, b""))
        return answer

    def _ask(self, method: str, request: bytes) -> bytes | None:
        """Return the answer as raw protobuf; None if the engine does not know this call."""
        try:
            return grpc.call(self._path, method, request, timeout_s=self.left_s())
        except TimeoutError as error:
            raise _not_answering(self._socket_path, f"no answer within {self._timeout_s:g} s") from error
        except OSError as error:
            raise _not_answering(self._socket_path, str(error)) from error
        except grpc.StatusError as error:
            if error.code == "UNIMPLEMENTED":
                return None
            if error.code in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}:
                raise _not_answering(self._socket_path, error.words) from error
            raise InstallerError(
                f"ask the engine on {self._socket_path} ({error})",
                remedy="see the engine's log",
                code="engine-not-answering",
            ) from error


def _not_answering(socket_path: Path, reason: str) -> NotAnsweringError:
    return NotAnsweringError(
        f"reach the engine on {socket_path} ({reason})",
        remedy="check that it runs and that this is its socket",
    )


@contextmanager
def calling(socket_path: Path, timeout_s: float) -> Iterator[Calls]:
    """Give calls for the block."""
    with connectable(socket_path) as path:
        yield Calls(path, socket_path, timeout_s)


@contextmanager
def _understood(socket_path: Path) -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InstallerError(
            f"understand what answers on {socket_path} ({error!r})",
            remedy="check that it is the engine's socket",
            code="engine-unknown",
        ) from error


def _without_cri(socket_path: Path, answer: bytes | None) -> InstallerError:
    """Return why containerd, which has told its plugins, serves no CRI; it is none if it tells nothing."""
    if answer is None:
        return InstallerError(
            f"find CRI on {socket_path}", remedy="check that it is the engine's socket", code="engine-unknown"
        )
    errors = {}
    with _understood(socket_path):
        for plugin in (dict(fields(part)) for part in _all(answer, 1)):
            error = dict(fields(plugin.get(7, b""))).get(2, b"")  # google.rpc.Status.message
            errors[f"{plugin[1].decode()}.{plugin[2].decode()}"] = error.decode()
    errors = {name: errors[name] for name in _CRI_PARTS if name in errors}
    failures = [error for error in errors.values() if not any(words in error for words in _SWITCHED_OFF)]
    if len(failures) < len(errors) or _CRI_SERVICE not in errors:
        return CriDisabledError(
            f"use CRI on {socket_path} (it is switched off)",
            remedy="if a kubelet is to use it, take cri out of disabled_plugins in containerd's config",
        )
    if failure := next(filter(None, failures), ""):  # those after the first say that they need it
        return CriFailedError(
            f"use CRI on {socket_path} (containerd's plugin did not load: {failure})",
            remedy="correct containerd's config and restart it",
        )
    return InstallerError(
        f"use CRI on {socket_path} (it serves no version v1)",
        remedy="update containerd to 1.6 or later",
        code="cri-failed",
    )


def _containerd_effect(config: dict[str, Any]) -> EffectiveConfig:
    runtimes = config["containerd"]["runtimes"].items()
    handlers = {name: Runtime(binary_of(runtime), drop_unasked(runtime)) for name, runtime in runtimes}
    state = config.get("stateDir")  # that of CRI, below the engine's own (engine-facts.md#containerd-places)
    places = {
        "root": config.get("containerdRootDir"),
        "state": state and posixpath.dirname(state),
        "address": config.get("containerdEndpoint"),
    }
    return EffectiveConfig(
        handlers,
        config["containerd"]["defaultRuntimeName"],
        cdi=config.get("enableCDI"),
        cdi_dirs=tuple(PurePosixPath(each) for each in config.get("cdiSpecDirs") or ()),
        places={name: place for name, place in places.items() if place},
    )


def _crio_config(socket_path: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    try:
        answer, body = ask_http(socket_path, ("GET", "/config", None, {}), deadline=deadline)
    except OSError as error:
        raise _not_answering(socket_path, str(error)) from error
    if answer.status != HTTPStatus.OK:
        raise AnswerError(f"{answer.status} {answer.reason}"[:100])
    return body.decode()


def _all(message: bytes, number: int) -> list[bytes]:
    return [value for field, value in fields(message) if field == number]


def text_in(message: bytes, number: int) -> str:
    """Return a field that is a text, "" where there is none."""
    found = dict(fields(message)).get(number, b"")
    return found.decode(errors="replace") if isinstance(found, bytes) else ""
