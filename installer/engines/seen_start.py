"""The record of an engine's start, with the digests of the configs that the engine has read.

The record is made at an install, and is valid as long as systemd's invocation of the unit is the same. By the
record the configs edited since the start are known even if a clock has stepped, or if the times of the
engine's process may not be read, as in a pod.
"""

from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines.config_files import TICK_S, digest_at, with_readable_configs
from installer.engines.startup import read_start
from installer.host import systemd
from installer.host.files import Host
from installer.model.engine import EngineState, SeenStart
from installer.model.facts import EngineRow

RUNNING: Final = frozenset({"active", "reloading"})


def complete_row(host: Host, row: EngineRow, engine: EngineState) -> EngineRow:
    """Complete a row after the steps of an install: the expected start was seen, or is dropped.

    A start seen before stays.
    """
    expected = row.seen_start
    if expected is None or expected.invocation:
        return row
    return replace(row, seen_start=_see_start(host, engine, expected))


def _see_start(host: Host, engine: EngineState, expected: SeenStart) -> SeenStart | None:
    """Return the start of an engine if the engine has read the ``expected`` texts; None if unknown."""
    unit = systemd.look_at_unit(host, engine.unit)
    if not unit.invocation or unit.active not in RUNNING:
        return None
    started = read_start(host, engine, unit)
    now = with_readable_configs(host, replace(engine, seen_start=None, started=started))
    present = {}
    for path in now.files:
        digest = digest_at(host, path)
        if digest:
            present[str(path)] = digest
    if present != {**expected.texts}:
        return None

    # An engine makes its socket right after it has read its configs.
    began_s = host.changed_s(engine.socket)
    if started is not None and started.began_s is not None:
        began_s = started.began_s
    if any(host.changed_s(PurePosixPath(path)) > began_s + TICK_S for path in expected.texts):
        return None
    return replace(expected, invocation=unit.invocation)


def with_seen_start(engine: EngineState, row: EngineRow | None) -> EngineState:
    """Fill in the record of an engine's present start from the ledger, if any."""
    seen = row.seen_start if row is not None else None
    if seen is None or not engine.invocation or seen.invocation != engine.invocation:
        return engine
    edited = engine.edited_inputs if seen.inputs != engine.inputs else ()
    return replace(engine, seen_start=seen, edited_inputs=edited)
