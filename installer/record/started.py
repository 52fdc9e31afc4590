"""How an engine was started, or will be: its program reads a config the same way only if started the same."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.data import dataclass, field, replace
from installer.decide.effect import Flags
from installer.decide.engines import ENGINES
from installer.decide.engines.row import Engine, ReloadMethod
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import File
from installer.host.files import Host
from installer.host.unit_start import UnitStart
from installer.record import units
from installer.record.cmdline import flags_of
from installer.record.restartable import Restart, not_restarted, places_by_files
from installer.record.unit_files import command_of
from installer.record.wrapped import engine_words

# Where systemd and shells look for programs that a word names, unless told otherwise.
PATH: Final = tuple(
    PurePosixPath(path)
    for path in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
)
PROC: Final = PurePosixPath("/proc")
VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
# What systemd gives to one process alone: sockets, and whom to tell that it is ready.
OF_ITS_PROCESS: Final = (
    "LISTEN_",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MAINPID",
)


@dataclass(frozen=True, slots=True)
class Started:
    """The words of a command line after the program, and the environment."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def started(host: Host, engine: EngineFacts) -> Started | None:
    """Return how the engine that runs was started; None where nobody can tell.

    Of a process that is not seen from here, as in a pod without the host's pid namespace, systemd tells the
    number and the host's own /proc the rest.
    """
    process = _process(host, engine)
    if process is None:
        return None
    words, environment = _strings(process / "cmdline")[1:], _environment(process) or _of_unit(host, engine)
    kept = {name: value for name, value in environment.items() if not name.startswith(OF_ITS_PROCESS)}
    return Started(words, kept)


def flags_and_paths(process: Path, row: Engine) -> tuple[Flags, tuple[tuple[PurePosixPath, ...], ...]]:
    """Return what an engine was told of runtimes at its start, and its PATH; ``process`` is one of /proc."""
    how = Started(_strings(process / "cmdline")[1:], _environment(process))
    return flags_of(row, how.words, how.environment), (_path(how),)


def paths_of(process: Path) -> tuple[PurePosixPath, ...]:
    """Return where a process, a directory of /proc, looks for programs that a word names."""
    return _path(Started(environment=_environment(process)))


def how_started(host: Host, engine: EngineFacts) -> Started | None:
    """Return how an engine was started, or one that is stopped will be; None where nobody can tell."""
    return _next_start(host, engine, _unit_start(host, engine)) if engine.stopped else started(host, engine)


def with_flags(host: Host, engine: EngineFacts) -> EngineFacts:
    """Return an engine with what it was told of runtimes at its start, and will be at its next.

    An admin edits the unit of an engine and restarts it later, after we have gone perhaps.
    """
    row, unit = ENGINES[engine.name], _unit_start(host, engine)
    later = _next_start(host, engine, unit)
    how = later if engine.stopped else started(host, engine)
    paths = tuple(dict.fromkeys(_path(each) for each in (how, later) if each))
    engine = replace(engine, paths=paths, start=_digest(host, unit))
    if later is not None:
        flags = flags_of(row, later.words, later.environment)
        engine = replace(engine, next_words=later.words, next_flags=flags)
    if row.reload is ReloadMethod.RESTART:
        engine = _with_restart(host, engine, unit)
    return replace(engine, flags=flags_of(row, how.words, how.environment)) if how else engine


def _with_restart(host: Host, engine: EngineFacts, unit: UnitStart) -> EngineFacts:
    """Return an engine with what is known of a restart; that has the words that systemd has read by now."""
    row, process = ENGINES[engine.name], _process(host, engine)
    words = _strings(process / "cmdline") if process else ()
    now = words[1:] if words and PurePosixPath(words[0]).name == row.process else None
    start = _next_start(host, engine, replace(unit, stale=False))
    later = start.words if start else None
    return replace(
        engine,
        not_restarted=not_restarted(host, engine, Restart(unit, process, now, later)),
        places_by_files=places_by_files(row, now, later),
    )


def _digest(host: Host, unit: UnitStart) -> str:
    """Return a digest of how a unit starts its service, and of which programs it runs before."""
    programs = [host.build_of(PurePosixPath("".join(command.words[:1]))) for command in unit.before]
    return sha256(repr((unit, programs)).encode()).hexdigest()


def _unit_start(host: Host, engine: EngineFacts) -> UnitStart:
    """Return what systemd has read of an engine's unit; nothing where it cannot be asked."""
    with suppress(InstallerError):
        return units.next_start(host, engine.unit) if engine.unit else UnitStart()
    return UnitStart()


def _next_start(host: Host, engine: EngineFacts, unit: UnitStart) -> Started | None:
    """Return how its unit will start an engine; None where that is not known."""
    try:
        environment = _pairs(unit.environment)
        for path in unit.environment_files:
            environment |= _assigned(host.read(PurePosixPath(path)))
    except InstallerError:
        return None
    # A boot comes to what the files say, whether anybody has told systemd of them or not.
    words = (command_of(host, engine.unit) if unit.stale else ()) or unit.words
    words = (*words[:1], *_expanded(words[1:], environment))
    told = engine_words(host, words, ENGINES[engine.name].process)
    return None if told is None else Started(told, environment)


def _path(how: Started) -> tuple[PurePosixPath, ...]:
    """Return where programs are looked for that a word names; systemd sets a PATH where a unit does not."""
    places = how.environment.get("PATH", "").split(":")
    return tuple(PurePosixPath(place) for place in places if place.startswith("/")) or PATH


def _assigned(file: File | None) -> dict[str, str]:
    """Return what an environment file says: a name, an equals sign, a value, quoted or not, on each line."""
    lines = file.content.decode(errors="replace").splitlines() if file else []
    pairs = _pairs([line.strip() for line in lines if line.strip()[:1] not in {"#", ";"}])
    return {name: value.strip().strip("\"'") for name, value in pairs.items()}


def _expanded(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield words as systemd makes them: a variable that is a word may become several words."""
    for word in words:
        if word[:1] == "$" and word[1:].isidentifier():
            yield from environment.get(word[1:], "").split()
        else:
            yield VARIABLE.sub(lambda found: environment.get(found[1], ""), word)


def without(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line but for some flags and their values."""
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag in flags:
            if not equals:
                next(rest, "")
            continue
        yield word


def _process(host: Host, engine: EngineFacts) -> Path | None:
    if engine.pid is not None:
        return Path("/proc", str(engine.pid))
    try:
        pid = units.state(host, engine.unit).main_pid if engine.unit else 0
    except InstallerError:
        return None
    process = host.local_path(PROC) / str(pid)
    try:
        # Our own /proc, of another pid namespace, has another process under that number, or none.
        named = (process / "comm").read_text().strip() == ENGINES[engine.name].process
    except OSError:
        return None
    return process if named else None


def _of_unit(host: Host, engine: EngineFacts) -> dict[str, str]:
    """Return the environment that the unit gives, where that of the process may not be read."""
    return _pairs(_unit_start(host, engine).environment)


def _environment(process: Path) -> dict[str, str]:
    return _pairs(_strings(process / "environ"))


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _strings(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_bytes().decode(errors="surrogateescape").split("\0")[:-1])
    except OSError:
        return ()
