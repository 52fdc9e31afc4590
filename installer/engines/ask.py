"""Ask an engine on its socket for the config in force, and find the answering process."""

import re
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines.apis import api_of
from installer.engines.engine_api import NotServedError
from installer.errors import InstallerError
from installer.host import processes, systemd
from installer.host.files import Host
from installer.model.engine import Engine, EngineState

ASK_S: Final = 5.0


def is_socket_activated(host: Host, kind: Engine, socket: PurePosixPath, unit: str) -> bool:
    """Tell whether systemd listens for a stopped engine, and would start the engine for a client."""
    if not kind.has_socket_unit or not host.exists(socket):
        return False
    if systemd.look_at_unit(host, unit).active not in {"inactive", "failed", systemd.STOPPING}:
        return False

    socket_unit = systemd.look_at_unit(host, f"{unit.removesuffix('.service')}.socket")
    addresses = [address for address in socket_unit.listens if address.startswith("/")]
    paths = {host.local_path(PurePosixPath(address)) for address in addresses}
    if socket_unit.active != "active":
        return False
    return not paths or host.local_path(socket) in paths


def ask(host: Host, engine: EngineState, *, timeout_s: float = ASK_S) -> EngineState:
    """Ask an engine on its socket; fill in the answering process and the config in force."""
    api = api_of(engine.kind)
    socket = host.local_path(engine.socket)
    engine = replace(
        engine,
        pid=None,
        exe=None,
        version=None,
        serving=None,
        silence_reason="",
        remedy="",
        other_engine_reason="",
        stopped=False,
        failed=False,
        disabled=False,
    )
    try:
        peer = processes.peer_of(socket, greeting=api.greeting, timeout_s=timeout_s)
    except InstallerError as error:
        return replace(engine, silence_reason=error.problem, remedy=error.remedy)
    if isinstance(peer, processes.NotServing):
        return replace(engine, stopped=True, silence_reason=f"nothing answers on {socket}")
    if isinstance(peer, processes.Silent):
        return replace(engine, silence_reason=f"{socket}: {peer.reason}")

    try:
        answer = api.ask(socket, timeout_s=timeout_s)
    except NotServedError as error:
        return replace(
            engine,
            stopped=True,
            silence_reason=error.problem,
            remedy=error.remedy,
            other_engine_reason=error.reason,
        )
    except InstallerError as error:
        engine = replace(
            engine,
            silence_reason=error.problem,
            disabled=error.code == "cri-disabled",
            failed=error.code == "cri-failed",
        )
    else:
        engine = replace(engine, serving=answer.serving, version=parse_version(answer.version))

    if isinstance(peer, processes.Peer):  # the process tells its unit by itself, or that it is in none
        exe = PurePosixPath(peer.exe) if peer.exe else None
        engine = replace(engine, pid=peer.pid, exe=exe, unit=peer.unit or "")
    return engine


def parse_version(text: str) -> tuple[int, ...]:
    """Parse the leading numbers of a version like v1.6.20~ds1, 28.5.2+dfsg4 or 2.4.0-beta.0."""
    leading = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", text)
    if leading is None:
        return ()
    return tuple(map(int, leading[1].split(".")))
