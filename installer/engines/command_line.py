"""How an engine was started, or will be, and what its words say of configs, state and runtimes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct, field

from installer.engines import ENGINES
from installer.engines.config_edits import tree_of
from installer.errors import InstallerError, Option, Remedy
from installer.host import units
from installer.host.files import Host
from installer.host.units import UnitStart
from installer.model.effective import Flags
from installer.model.engine_spec import EngineSpec
from installer.model.facts import EngineState
from installer.model.files import File
from installer.model.options import Options

Words = Sequence[str]
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


def value_of(cmdline: Words, names: Sequence[str]) -> str | None:
    """Return the value of a flag, "" for one without; None where it is not given."""
    return next(_values_of(cmdline, names), None)


def _values_of(cmdline: Words, names: Sequence[str]) -> Iterator[str]:
    """Yield all values of a flag that may be given more than once."""
    words = iter(cmdline)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in names:
            yield value if equals else next(words, "")


def flags_of(spec: EngineSpec, cmdline: Words, environment: Mapping[str, str]) -> Flags:
    """Return what an engine was told of runtimes when it was started; a flag wins over a variable."""
    by = spec.cmdline.runtimes
    if by is None:
        return Flags()
    default = value_of(cmdline, (by.default,)) or environment.get(by.default_variable, "")
    told = tuple(_values_of(cmdline, (by.runtime,))) or (environment.get(by.runtime_variable, ""),)
    pairs = (word.split(by.between) for each in told for word in each.split(","))
    return Flags(default, {pair[0]: pair[1] for pair in pairs if len(pair) > 1})


def path_of(cmdline: Words, names: Sequence[str]) -> PurePosixPath | None:
    """Return the path that a flag gives; None for one that is relative to who knows what."""
    named = value_of(cmdline, names)
    return PurePosixPath(named) if named and named.startswith("/") else None


def place_of(
    host: Host, cmdline: Words, flags: Sequence[str], config: PurePosixPath, key: str
) -> PurePosixPath | None:
    """Return the path that a flag, or else a key of the config, gives; None for none, and a relative one."""
    said: object = value_of(cmdline, flags)
    if said is None and key:
        with suppress(InstallerError):
            said = tree_of(host.read(config), config).get(key)
    return PurePosixPath(said) if isinstance(said, str) and said.startswith("/") else None


def state_of(host: Host, spec: EngineSpec, cmdline: Words, config: PurePosixPath) -> PurePosixPath | None:
    """Return where an engine keeps the state of its containers, if its command line or config tells."""
    place = spec.state
    found = place_of(host, cmdline, (place.flag,) if place.flag else (), config, place.key)
    return found and found / place.below


def overruling(
    spec: EngineSpec, cmdline: Words, options: Options, whose: str = "it was started"
) -> Iterator[InstallerError]:
    """Yield why a flag on the command line stands against what we would write; ``whose`` says which start."""
    by, name = spec.cmdline, spec.name
    for names in (by.config, by.drop_ins):
        path = value_of(cmdline, names)
        if path and not path.startswith("/"):
            yield InstallerError(
                f"find the config of {name} ({whose} with {names[0]} {path}, a relative path)",
                remedy=Remedy(
                    "start it with the absolute path, or name that with ", Option("config", "PATH", name)
                ),
                code="engine-flags",
            )
    conflicts = {**(by.conflicts_as_default if options.set_as_default else {}), **by.conflicts}
    found = [flag for flag in conflicts if value_of(cmdline, (flag,)) is not None]
    if found:
        told = ", and with ".join(f"{flag}, {conflicts[flag]}" for flag in found)
        yield InstallerError(
            f"configure {name} ({whose} with {told})",
            remedy=f"move {' and '.join(found)} from its command line to its config, and restart it",
            code="engine-flags",
        )


class Started(Struct, frozen=True):
    """The words of a command line after the program, and the environment."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[PurePosixPath, ...]:
        """Where programs are looked for that a word names; systemd sets a PATH where a unit does not."""
        places = self.environment.get("PATH", "").split(":")
        return tuple(PurePosixPath(place) for place in places if place.startswith("/")) or PATH


def started(host: Host, engine: EngineState) -> Started | None:
    """Return how the engine that runs was started; None where nobody can tell.

    Of a process that is not seen from here, as in a pod without the host's pid namespace, systemd tells the
    number and the host's own /proc the rest.
    """
    process = process_path(host, engine)
    if process is None:
        return None
    words = strings(process / "cmdline")[1:]
    # Of the unit where that of the process may not be read.
    environment = _environment(process) or _pairs(unit_start(host, engine).environment)
    kept = {name: value for name, value in environment.items() if not name.startswith(OF_ITS_PROCESS)}
    return Started(words, kept)


def paths_of(process: Path) -> tuple[PurePosixPath, ...]:
    """Return where a process, a directory of /proc, looks for programs that a word names."""
    return Started(environment=_environment(process)).paths


def how_started(host: Host, engine: EngineState) -> Started | None:
    """Return how an engine was started, or one that is stopped will be; None where nobody can tell."""
    return next_start(host, engine, unit_start(host, engine)) if engine.stopped else started(host, engine)


def unit_start(host: Host, engine: EngineState) -> UnitStart:
    """Return what systemd has read of an engine's unit; nothing where it cannot be asked."""
    with suppress(InstallerError):
        return units.read(host, engine.unit).start if engine.unit else UnitStart()
    return UnitStart()


def next_start(host: Host, engine: EngineState, unit: UnitStart) -> Started | None:
    """Return how its unit will start an engine; None where that is not known."""
    try:
        environment = _pairs(unit.environment)
        for path in unit.environment_files:
            environment |= _assigned(host.read(PurePosixPath(path)))
    except InstallerError:
        return None
    words = (*unit.words[:1], *_expanded(unit.words[1:], environment))
    told = _engine_words(words, ENGINES[engine.name].process)
    return None if told is None else Started(told, environment)


def _engine_words(words: Sequence[str], process: str) -> tuple[str, ...] | None:
    """Return the words behind an engine's program, which env or nice may start; None where no word is it."""
    named = (
        index
        for index, word in enumerate(words)
        if (word[:1] == "/" or not index) and " " not in word and PurePosixPath(word).name == process
    )
    found = next(named, None)
    return None if found is None else tuple(words[found + 1 :])


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


def process_path(host: Host, engine: EngineState) -> Path | None:
    """Return the process of an engine, a directory of /proc; None where it is not seen."""
    if engine.pid is not None:
        return Path("/proc", str(engine.pid))
    try:
        pid = units.read(host, engine.unit).main_pid if engine.unit else 0
    except InstallerError:
        return None
    process = host.local_path(PROC) / str(pid)
    try:
        # Our own /proc, of another pid namespace, has another process under that number, or none.
        named = (process / "comm").read_text().strip() == ENGINES[engine.name].process
    except OSError:
        return None
    return process if named else None


def _environment(process: Path) -> dict[str, str]:
    return _pairs(strings(process / "environ"))


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def strings(here: Path) -> tuple[str, ...]:
    """Return the strings of a file of /proc, which zero bytes end; none where it cannot be read."""
    try:
        text = here.read_bytes().decode(errors="surrogateescape")
    except OSError:
        return ()
    return tuple(text.removesuffix("\0").split("\0")) if text else ()
