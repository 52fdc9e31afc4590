"""What the next start of an engine will make of its configs: whether it comes up, and serves ours."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.rows import ConfigRow, EngineRow, Record
from installer.decide.texts import digest_of
from installer.host.files import Host
from installer.host.inodes import changed_s
from installer.host.processes import started_in
from installer.record.configs import contents_of, with_configs, with_readable_configs
from installer.record.reads import TICK_S
from installer.record.trial import Trials


def refusals(host: Host, engines: Iterable[EngineFacts]) -> dict[str, str]:
    """Return why engines that serve would not come up with the configs that lie there, by name.

    Their own programs are asked, as at the gate; nothing is said of an engine that would.
    """
    found = {each.name: _refusal(host, each) for each in engines if each.serving is not None}
    return {name: reason for name, reason in found.items() if reason}


def _refusal(host: Host, engine: EngineFacts) -> str:
    now = with_readable_configs(host, ENGINES[engine.name], engine)
    try:
        contents = contents_of(host, now.files)
        return Trials(host, contents)(now, contents).fatal
    except InstallerError as error:
        return error.problem


def lacking(host: Host, row: EngineRow, rows: Iterable[ConfigRow]) -> tuple[str, tuple[str, ...]]:
    """Return why an engine would not come up with its configs, and what it would not serve of ours.

    ``rows`` are those of its configs. Texts that are as its last install left them are proven; of others its
    own program says what they come to.

    Raises:
        InstallerError: a config cannot be read, or is not valid.
    """
    engine = ENGINES[row.name]
    if row.config is None or engine.finds:
        return "", ()
    drop_in = next((each.path for each in rows if each.written and each.path != row.config), engine.drop_in)
    facts = EngineFacts(
        row.name, row.config, drop_in, None, (), row.socket, row.unit, version=row.version, state=row.state
    )
    facts = with_configs(host, engine, facts)
    contents = contents_of(host, facts.files)
    if row.proven == digest_of(contents):
        return "", ()
    found = Trials(host, contents)(facts, contents)
    return found.fatal, () if found.fatal else tuple(_lacking(row, found))


def _lacking(row: EngineRow, found: Effect) -> Iterator[str]:
    for name, binary in row.runtimes:
        handler = found.handlers.get(name)
        if handler is None:
            yield f"the runtime {name} is not defined"
        elif handler.binary != str(binary):
            yield f"the runtime {name} starts {handler.binary or 'something else'}"
    if row.default and found.default != row.default:
        yield f"the default runtime is {found.default}, not {row.default}"


def unread(host: Host, held: Record, engine: EngineFacts) -> bool:
    """Tell whether somebody else has written to a config since the start of an engine that we see."""
    ours = {digest for row in held.configs for digest in row.ours}
    with suppress(OSError):
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        since_s = booted_s + started_in(Path(f"/proc/{engine.pid}/stat").read_text())
        return any(
            changed_s(host.local_path(path)) > since_s + TICK_S
            for path in engine.files
            if (file := host.read(path)) is not None and file.digest not in ours
        )
    return False
