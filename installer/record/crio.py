"""CRI-O as it was started: which configs it reads, and whether what it says is what it does."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

import structlog

from installer.decide.engines import ENGINES
from installer.decide.engines.crio_effect import HOOK_DIR, STATE
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import Kind
from installer.decide.options import Places
from installer.host.containers import being_made
from installer.host.files import Host
from installer.host.inodes import changed_s
from installer.host.processes import Peer, started_in
from installer.record import units
from installer.record.cmdline import CONFIG, DROP_INS, path_of

TICK_S: Final = 0.01  # the start of a process is told in these
NAME: Final = "crio"
NOTICED_S: Final = 0.5  # CRI-O watches its hooks; meanwhile it may be writing a bundle with ours
CREATED_S: Final = 10.0
CREATED_POLL_S: Final = 0.05

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Started:
    """How the running CRI-O was started, and when, in seconds of the wall clock; None where nobody knows."""

    cmdline: tuple[str, ...] = ()
    at_s: float | None = None


def started(host: Host, unit: str, peer: Peer | None) -> Started:
    """Return how the process was started that answers, or, where that is not seen, the one of its unit."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    if peer is not None:
        return Started(peer.cmdline, booted_s + peer.started)
    with suppress(InstallerError):
        process = PurePosixPath("/proc", str(units.state(host, unit).main_pid))
        cmdline, stat = host.read(process / "cmdline"), host.read(process / "stat")
        words = tuple(cmdline.content.decode(errors="surrogateescape").split("\0")[:-1]) if cmdline else ()
        if stat and words and PurePosixPath(words[0]).name == NAME:
            return Started(words, booted_s + started_in(stat.content.decode(errors="replace")))
    return Started()


def with_places(host: Host, facts: EngineFacts, cmdline: tuple[str, ...], places: Places) -> EngineFacts:
    """Return CRI-O with the root file that it reads, and with a drop-in where it looks for one.

    NVIDIA's operator names a root file that CRI-O does not read; what is beside it counts all the same.
    """
    named = path_of(cmdline, CONFIG[NAME])
    unread = facts.drop_in and places.config and (cmdline or host.kind(places.config) is not Kind.FILE)
    if places.config is None or unread:
        facts = replace(facts, config=named or ENGINES[NAME].config)
    directory = path_of(cmdline, DROP_INS)
    if places.drop_in is None and directory and facts.drop_in:
        facts = replace(facts, drop_in=directory / facts.drop_in.name)
    return facts


def unread(host: Host, facts: EngineFacts, cmdline: tuple[str, ...]) -> Iterator[InstallerError]:
    """Yield why CRI-O would not read what is written for it."""
    if facts.hook is not None:
        places = facts.serving.hook_dirs if facts.serving else ()
        if places and host.resolve(facts.hook.parent) not in {host.resolve(path) for path in places}:
            yield InstallerError(
                f"give CRI-O the hook {facts.hook} (it looks for hooks in {', '.join(map(str, places))})",
                remedy=f"add {facts.hook.parent} to hooks_dir in its config, or configure runtimes instead",
            )
    elif facts.drop_in is not None:
        directory = path_of(cmdline, DROP_INS) or ENGINES[NAME].drop_in_dir
        place = host.resolve(facts.drop_in.parent)
        if directory is not None and not place.is_relative_to(host.resolve(directory)):
            yield InstallerError(
                f"configure CRI-O in {facts.drop_in} (it reads the files below {directory})",
                remedy=f"name a file there with --drop-in-config, such as {directory / facts.drop_in.name}",
            )


def outdated(host: Host, serving_since_s: float | None, paths: Iterable[PurePosixPath]) -> bool:
    """Tell whether a config was changed after CRI-O had started, so that its words may not be its deeds.

    A reload changes what it says and not which runtimes it has (cri-o issue 10202). A file that is not there
    any more left its directory changed.
    """
    if serving_since_s is None:
        return False
    seen = [path if host.kind(path) is not Kind.ABSENT else path.parent for path in paths]
    return any(changed_s(host.here(path)) > serving_since_s + TICK_S for path in seen)


def hook_files(host: Host, facts: EngineFacts) -> Iterator[PurePosixPath]:
    """Yield the OCI hooks that CRI-O runs, in what is its usual place where it does not tell."""
    for directory in (facts.serving and facts.serving.hook_dirs) or (PurePosixPath(HOOK_DIR),):
        for name in host.names(directory):
            if name.endswith(".json") and host.kind(directory / name) is Kind.FILE:
                yield directory / name


def await_created(host: Host, facts: EngineFacts, toolkit: PurePosixPath, check: Callable[[], None]) -> None:
    """Wait until no container that CRI-O is making has yet to run a hook of ours, which is removed by now."""
    if facts.serving is None:
        return
    time.sleep(NOTICED_S)
    deadline = time.monotonic() + CREATED_S
    state = facts.state or STATE
    while waiting := tuple(being_made(host, state, toolkit)):
        if time.monotonic() > deadline:
            log.warning("containers stuck while they were made", containers=[each[:12] for each in waiting])
            return
        check()
        time.sleep(CREATED_POLL_S)
