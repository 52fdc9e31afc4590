"""The wait until a restart of an engine would strand no container."""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.restarts import not_idle
from installer.decide.steps import WriteConfig
from installer.host import cri
from installer.host.events import log
from installer.host.files import Host
from installer.record.units import Patience
from installer.record.write import write_config

IDLE_S: Final = 10.0
ASK_S: Final = 1.0
POLL_S: Final = 0.1


def await_idle(host: Host, facts: EngineFacts, patience: Patience) -> None:
    """Wait until no container is created but not started: a restart strands it there (gpu-operator#991).

    Ours is one of them until its own start is done (gpu-operator#456). One that stays as it is for longer
    is stuck already, and no reason to wait for ever, unless a restart is asked for only when idle.

    Raises:
        NotIdleError: it is not, and is asked for.
    """
    deadline = time.monotonic() + min(IDLE_S, patience.start_s / 2)
    while waiting := _creating(host, facts):
        if time.monotonic() > deadline and patience.when_idle:
            raise not_idle(facts, waiting)
        if time.monotonic() > deadline:
            names = [each[:12] for each in waiting]
            log.warning("containers stuck in CREATED", engine=facts.name, containers=names)
            return
        patience.check()
        time.sleep(POLL_S)


def _creating(host: Host, facts: EngineFacts) -> tuple[str, ...]:
    try:
        return cri.unready_containers(host.local_path(facts.socket), timeout_s=ASK_S)
    except InstallerError:  # CRI is down or hangs: there is nothing that a restart could disturb
        return ()


def with_creating(host: Host, engines: Iterable[EngineFacts]) -> tuple[EngineFacts, ...]:
    """Return the engines with the containers that a restart would strand, for those that are restarted."""
    return tuple(
        replace(each, creating=_creating(host, each))
        if ENGINES[each.name].reload is ReloadMethod.RESTART
        else each
        for each in engines
    )


def write_when_idle(
    host: Host, step: WriteConfig, engines: Mapping[str, EngineFacts], patience: Patience
) -> None:
    """Write or remove a config; one that restarts its engine by being written waits for the same as that."""
    facts = engines.get(step.engine)
    if facts is not None and ENGINES[step.engine].reload is ReloadMethod.ITSELF:
        await_idle(host, facts, patience)
    write_config(host, step)
