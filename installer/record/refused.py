"""Configs that an engine refuses although it serves: it has not read them yet, and its next start will."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.rows import Record
from installer.host.files import Host
from installer.host.inodes import changed_s
from installer.host.processes import started_in
from installer.record.configs import contents_of, with_readable_configs
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
