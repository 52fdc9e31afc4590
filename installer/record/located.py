"""Where an engine listens: at the socket that is known, or where its unit does by now."""

import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.nri.wishes import DEFAULT_SOCKET
from installer.decide.options import Options, Places
from installer.decide.rows import EngineRow, Record
from installer.host.files import Host
from installer.host.processes import listening
from installer.record import units
from installer.record.engines import Answer, ask, is_held

PROC: Final = PurePosixPath("/proc")
POLL_S: Final = 0.1
ANSWER_S: Final = 1.0  # of several sockets, one that is no API hangs perhaps


def located(
    host: Host, facts: EngineFacts, answer: Answer, row: EngineRow, options: Options
) -> tuple[EngineFacts, Answer]:
    """Return an engine of the ledger where it listens by now, and its answer there.

    Its owner may have started it with another address since: where nobody listens, or another unit does, the
    socket is asked that we are told of now, and each that the process of the unit listens on.
    """
    engine, peer = ENGINES[facts.name], answer.peer
    if not row.unit or not (answer.stopped or (peer is not None and peer.unit not in {None, row.unit})):
        return facts, answer
    told = options.places.get(facts.name, Places()).socket or row.socket
    others = (told, row.socket, *_sockets(host, row.unit)) if not engine.finds else ()
    for socket in dict.fromkeys(path for path in others if path != facts.socket):
        if is_held(host, engine, socket, row.unit):
            continue
        found = ask(engine, host.local_path(socket), timeout_s=ANSWER_S)
        if (found.serving is not None or found.failed) and (not found.peer or found.peer.unit == row.unit):
            return replace(facts, socket=socket, unit=row.unit), found
    if answer.stopped and engine.reload is not ReloadMethod.HUP:
        resting, crashing = units.at_rest(host, row.unit), units.crashes(host, row.unit)
        return replace(facts, crashing=crashing and not resting), replace(answer, stopped=resting)
    return facts, answer


def awaited(host: Host, facts: EngineFacts, answer: Answer, at_most_s: float) -> Answer:
    """Return the answer of an engine that restarts itself once that is done, if it is between two lives.

    Somebody has changed its configs a moment ago, perhaps we before a crash.
    """
    engine = ENGINES[facts.name]
    silent = answer.serving is None and not answer.failed
    if not (
        silent and engine.reload is ReloadMethod.ITSELF and engine.generated and host.exists(facts.socket)
    ):
        return answer
    if not any(units.runs(host, unit) for unit in engine.units):
        return answer
    deadline = time.monotonic() + min(engine.generated.start_s, at_most_s)
    while answer.serving is None and not answer.failed and time.monotonic() < deadline:
        time.sleep(POLL_S)
        answer = ask(engine, host.local_path(facts.socket), timeout_s=ANSWER_S)
    return answer


def located_again(
    host: Host, facts: EngineFacts, answer: Answer, held: Record, options: Options
) -> tuple[EngineFacts, Answer]:
    """Return an engine as ``located`` does if it is in the ledger, and nobody names a socket now."""
    row = next((row for row in held.engines if row.name == facts.name), None)
    if row is None or options.places.get(facts.name, Places()).socket is not None:
        return facts, answer
    return located(host, facts, answer, row, options)


def _sockets(host: Host, unit: str) -> Iterator[PurePosixPath]:
    """Yield what the main process of a unit listens on, short names first: they are those of the API.

    Not NRI's: there each who connects is a plugin, and keeps others out while he says nothing.
    """
    try:
        state = units.state(host, unit)
    except InstallerError:
        return
    if state.active == "active" and state.main_pid:
        for path in sorted(listening(host.local_path(PROC) / str(state.main_pid)), key=len):
            if PurePosixPath(path).name != DEFAULT_SOCKET.name:
                yield PurePosixPath(path)
