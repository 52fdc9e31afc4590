"""The engines that run: what they answer, and what their own programs make of the configs on the disk."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
from installer.decide.data import replace
from installer.decide.doctor.facts import RunningEngine
from installer.decide.edits import Tree
from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.row import Api, Engine
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import File
from installer.decide.options import Options, Places
from installer.host.dockerd import settings
from installer.host.files import Host
from installer.host.process_table import Seen
from installer.record import reads, units
from installer.record.below import Below, below, silence
from installer.record.configs import with_readable_configs
from installer.record.engines import Answer, ask, is_held
from installer.record.found import looked_for
from installer.record.started import started
from installer.record.texts import is_file
from installer.record.trial import Trials

ASK_S: Final = 3.0
HOOK: Final = "nvidia-container-runtime-hook"


def engines(host: Host, options: Options, seen: Iterable[Seen]) -> tuple[RunningEngine, ...]:
    """Return what each engine says whose process runs; a connection could start one that does not."""
    running = {each.name for each in seen}
    wanted = [engine for engine in ENGINES.values() if engine.process in running]
    return tuple(found for engine in wanted if (found := _engine(host, options, engine)) is not None)


def _engine(host: Host, options: Options, engine: Engine) -> RunningEngine | None:
    place = options.places.get(engine.name, Places())
    facts = replace(looked_for(engine, options), hook=None)
    if is_held(host, engine, facts.socket, facts.unit):
        return None  # the process is another one's, or about to end
    answer = ask(engine, host.local_path(facts.socket), timeout_s=ASK_S)
    if answer.stopped and answer.another is None:
        return None
    if engine.finds:
        # A process that is not seen tells by systemd in which unit it is.
        runs = next((unit for unit in engine.units if units.runs(host, unit)), "")
        facts = replace(facts, unit=answer.peer.unit or "" if answer.peer else runs)
        if facts.unit not in engine.units:
            return None  # its sibling, on the same socket
    facts = _located(host, engine, facts, place, answer)
    contents, unreadable = _contents(host, facts.files)
    speaks_docker = engine.api is Api.DOCKER
    said = settings(host.local_path(facts.socket), timeout_s=ASK_S) if speaks_docker else ("", None)
    return RunningEngine(
        name=engine.name,
        said=".".join(map(str, answer.version or ())),
        version=answer.version or (),
        serving=answer.serving,
        silence=_silence(host, facts, answer),
        failed=answer.failed and not answer.disabled,
        disabled=answer.disabled,
        another=answer.another.reason if answer.another else "",
        told=None if engine.finds or answer.another else _told(host, facts, contents),
        trees=dict(_trees(contents)),
        config=facts.config,
        unreadable=unreadable,
        unit=facts.unit,
        unit_state=unit_state(host, facts.unit),
        cgroup_driver=said[0],
        live_restore=said[1],
        finds_hook=_finds_hook(host, facts) if speaks_docker else None,
        unable=_unable(host, facts, options) if answer.serving else "",
    )


def _silence(host: Host, engine: EngineFacts, answer: Answer) -> str:
    """Return why an engine does not answer: it may wait for another one below it."""
    waits = answer.serving is None and answer.peer is not None
    return (waits and silence(host, engine, answer.peer.cmdline if answer.peer else ())) or answer.silence


def _unable(host: Host, engine: EngineFacts, options: Options) -> str:
    """Return why an engine that answers could start no container; "" where it could."""
    try:
        below(host, engine, options.layout.toolkit, Below())
    except InstallerError as error:
        return error.problem
    return ""


def _located(host: Host, engine: Engine, facts: EngineFacts, place: Places, answer: Answer) -> EngineFacts:
    """Return the facts with what the process tells: its program, its unit, the configs that it reads."""
    peer = answer.peer
    facts = replace(
        facts,
        unit=(peer.unit or "") if peer else facts.unit,
        version=answer.version,
        serving=answer.serving,
        pid=peer.pid if peer else None,
        exe=PurePosixPath(peer.exe) if peer and peer.exe else None,
    )
    facts = reads.with_places(host, facts, reads.process_of(host, facts, peer).cmdline, place)
    return with_readable_configs(host, engine, facts)


def _contents(host: Host, paths: Sequence[PurePosixPath]) -> tuple[dict[PurePosixPath, File | None], str]:
    contents: dict[PurePosixPath, File | None] = {}
    unreadable = ""
    for path in paths:
        try:
            contents[path] = host.read(path)
            tree_of(contents[path], path)
        except InstallerError as error:
            unreadable = unreadable or error.problem
    return contents, unreadable


def _told(host: Host, facts: EngineFacts, contents: Mapping[PurePosixPath, File | None]) -> Effect | None:
    try:
        return Trials(host, contents)(facts, {})
    except InstallerError:
        return None


def _trees(contents: Mapping[PurePosixPath, File | None]) -> Iterator[tuple[PurePosixPath, Tree]]:
    for path, file in contents.items():
        try:
            yield path, tree_of(file, path)
        except InstallerError:
            continue


def unit_state(host: Host, unit: str) -> str:
    """Return "active/sub/result" of a unit; "" where it is not there, or systemd does not tell."""
    try:
        now = units.state(host, unit) if unit else None
    except InstallerError:
        return ""
    return f"{now.active}/{now.sub}/{now.result}" if now and now.load != "not-found" else ""


def _finds_hook(host: Host, facts: EngineFacts) -> bool | None:
    found = started(host, facts)
    path = found.environment.get("PATH", "") if found else ""
    if not path:
        return None
    places = [PurePosixPath(place) for place in path.split(":") if place.startswith("/")]
    return any(is_file(host, place / HOOK) for place in places)
