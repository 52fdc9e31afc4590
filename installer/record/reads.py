"""Which configs a running engine reads, as it was started, and whether what it says is what it does."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import dataclass, replace
from installer.decide.engines import ENGINES
from installer.decide.engines.row import DropIns, Engine
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import Kind
from installer.decide.options import Places
from installer.host.files import Host
from installer.host.inodes import changed_s
from installer.host.processes import Peer, started_in
from installer.record import units
from installer.record.cmdline import path_of

TICK_S: Final = 0.01  # the start of a process is told in these


@dataclass(frozen=True, slots=True)
class Process:
    """How an engine that runs was started; when, in seconds of the wall clock, None where nobody knows."""

    cmdline: tuple[str, ...] = ()
    at_s: float | None = None


def process_of(host: Host, engine: EngineFacts, peer: Peer | None) -> Process:
    """Return how the process was started that answers, or, where that is not seen, the one of its unit."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    if peer is not None:
        return Process(peer.cmdline, booted_s + peer.started)
    with suppress(InstallerError):
        process = PurePosixPath("/proc", str(units.state(host, engine.unit).main_pid))
        cmdline, stat = host.read(process / "cmdline"), host.read(process / "stat")
        words = tuple(cmdline.content.decode(errors="surrogateescape").split("\0")[:-1]) if cmdline else ()
        if stat and words and PurePosixPath(words[0]).name == ENGINES[engine.name].process:
            return Process(words, booted_s + started_in(stat.content.decode(errors="replace")))
    return Process()


def with_places(host: Host, facts: EngineFacts, cmdline: tuple[str, ...], places: Places) -> EngineFacts:
    """Return an engine with the root file that it reads, and with a drop-in where it looks for one.

    NVIDIA's operator names a root file that CRI-O does not read; what is beside it counts all the same.
    """
    engine = ENGINES[facts.name]
    beside = facts.drop_in is not None and engine.drop_ins is DropIns.READ
    unread = beside and places.config and (cmdline or host.kind(places.config) is not Kind.FILE)
    if places.config is None or unread:
        facts = replace(facts, config=path_of(cmdline, engine.cmdline.config) or engine.config)
    directory = path_of(cmdline, engine.cmdline.drop_ins)
    if places.drop_in is None and directory and facts.drop_in:
        facts = replace(facts, drop_in=directory / facts.drop_in.name)
    return facts


def unread(host: Host, facts: EngineFacts, cmdline: tuple[str, ...]) -> Iterator[InstallerError]:
    """Yield why an engine would not read what is written for it."""
    engine = ENGINES[facts.name]
    if facts.hook is not None:
        places = facts.serving.hook_dirs if facts.serving else ()
        if places and host.resolve(facts.hook.parent) not in {host.resolve(path) for path in places}:
            yield InstallerError(
                f"give {engine.title} the hook {facts.hook} "
                f"(it looks for hooks in {', '.join(map(str, places))})",
                remedy=f"add {facts.hook.parent} to hooks_dir in its config, or configure runtimes instead",
                code="engine-flags",
            )
    elif facts.drop_in is not None and engine.drop_ins is DropIns.READ:
        directory = path_of(cmdline, engine.cmdline.drop_ins) or engine.drop_in_dir
        place = host.resolve(facts.drop_in.parent)
        if directory is not None and not _read_there(engine, place, facts.drop_in, host.resolve(directory)):
            read = (
                directory / engine.drop_in_names if engine.drop_in_names else f"the files below {directory}"
            )
            yield InstallerError(
                f"configure {engine.title} in {facts.drop_in} (it reads {read})",
                remedy=f"name a file there with --drop-in-config, such as {directory / facts.drop_in.name}",
                code="engine-flags",
            )


def _read_there(
    engine: Engine, place: PurePosixPath, drop_in: PurePosixPath, directory: PurePosixPath
) -> bool:
    """Tell whether an engine that reads ``directory`` reads a drop-in whose own directory is ``place``."""
    if engine.drop_in_names:
        return place == directory and fnmatchcase(drop_in.name, engine.drop_in_names)
    return place.is_relative_to(directory)


def moving(facts: EngineFacts, cmdline: tuple[str, ...]) -> Iterator[InstallerError]:
    """Yield why an engine would read another config as soon as it is restarted, by us or by anybody."""
    flags, usual = ENGINES[facts.name].cmdline.config, ENGINES[facts.name].config
    now, later = path_of(cmdline, flags) or usual, path_of(facts.next_words, flags) or usual
    if not (cmdline and facts.next_words) or now == later:
        return
    if facts.not_restarted is not None and facts.not_restarted.code == "restart-moves-engine":
        yield facts.not_restarted
    else:
        yield InstallerError(
            f"configure {facts.title} in {now} (at its next start {facts.unit} gives it {later})",
            remedy=f"restart {facts.unit} at a time of your choice, then run again",
            code="engine-flags",
        )


def outdated(host: Host, engine: Engine, since_s: float | None, paths: Iterable[PurePosixPath]) -> bool:
    """Tell whether a config was changed after its start, ``since_s``, so that its words may not be its deeds.

    A file that is not there any more left its directory changed.
    """
    if since_s is None or not engine.reload_misreports:
        return False
    seen = [path if host.kind(path) is not Kind.ABSENT else path.parent for path in paths]
    return any(changed_s(host.local_path(path)) > since_s + TICK_S for path in seen)
