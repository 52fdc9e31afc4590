"""The OCI hooks that an engine runs for its containers, and those containers that have one yet to run."""

import time
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.facts import EngineFacts
from installer.decide.inode import Kind
from installer.decide.layout import Layout
from installer.host.containers import being_made
from installer.host.events import log
from installer.host.files import Host

NOTICED_S: Final = 0.5  # CRI-O watches its hooks; meanwhile it may be writing a bundle with ours
CREATED_S: Final = 10.0
CREATED_POLL_S: Final = 0.05


def hook_files(host: Host, facts: EngineFacts) -> Iterator[PurePosixPath]:
    """Yield the OCI hooks that an engine runs, in what is its usual place where it does not tell."""
    usual = ENGINES[facts.name].hook_dir
    for directory in (facts.serving and facts.serving.hook_dirs) or ((usual,) if usual else ()):
        for name in host.names(directory):
            if name.endswith(".json") and host.kind(directory / name) is Kind.FILE:
                yield directory / name


def await_created(host: Host, facts: EngineFacts, layout: Layout, check: Callable[[], None]) -> None:
    """Wait until no container that an engine is making has yet to run a hook of ours, removed by now."""
    if facts.serving is None:
        return
    time.sleep(NOTICED_S)
    deadline = time.monotonic() + CREATED_S
    state = facts.state or ENGINES[facts.name].state.usual
    while waiting := tuple(being_made(host, state, layout.toolkit)):
        if time.monotonic() > deadline:
            log.warning("containers stuck in CREATED", containers=[each[:12] for each in waiting])
            return
        check()
        time.sleep(CREATED_POLL_S)
