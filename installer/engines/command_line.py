"""How an engine was started, or will be, and what its words say of configs, state and runtimes."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.engines.config_edits import tree_of
from installer.errors import InstallerError, Option, Remedy
from installer.host import systemd
from installer.host.files import Host
from installer.host.processes import started_of
from installer.model.engine_spec import EngineSpec, Flags, Place
from installer.model.facts import EngineState, Started
from installer.model.options import Options

Words = Sequence[str]
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


def flags_of(spec: EngineSpec, start: Started) -> Flags:
    """Return what flags and variables say of runtimes; a flag wins over a variable."""
    by = spec.cmdline.runtimes
    if by is None:
        return Flags()
    default = value_of(start.words, (by.default,)) or start.environment.get(by.default_variable, "")
    values = tuple(_values_of(start.words, (by.runtime,)))
    values = values or (start.environment.get(by.runtime_variable, ""),)
    pairs = (word.split(by.between) for value in values for word in value.split(","))
    return Flags(default, {pair[0]: pair[1] for pair in pairs if len(pair) > 1})


def path_of(cmdline: Words, names: Sequence[str]) -> PurePosixPath | None:
    """Return the path that a flag gives; None for one that is relative to who knows what."""
    named = value_of(cmdline, names)
    return PurePosixPath(named) if named and named.startswith("/") else None


def find_place(host: Host, place: Place, cmdline: Words, config: PurePosixPath) -> PurePosixPath | None:
    """Return where a flag, or else a key of the config, puts a place; None for none, and a relative one."""
    value: object = value_of(cmdline, (place.flag,)) if place.flag else None
    if value is None and place.key:
        with suppress(InstallerError):
            value = tree_of(host.read(config), config).get(place.key)
    return PurePosixPath(value, place.below) if isinstance(value, str) and value.startswith("/") else None


def explain_overruling(
    spec: EngineSpec, cmdline: Words, options: Options, whose: str = "it was started"
) -> Iterator[InstallerError]:
    """Yield why a flag, or a VAR=value, stands against what we would write; ``whose`` says which start."""
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
    conflicts = dict(by.conflicts)
    if by.runtimes is not None and options.set_as_default:
        conflicts = {by.runtimes.default: "which its config may not say too", **conflicts}
        if value_of(cmdline, (by.runtimes.default_variable,)) not in {None, "", options.runtime_name}:
            conflicts[by.runtimes.default_variable] = "which wins over its config"
    found = [flag for flag in conflicts if value_of(cmdline, (flag,)) is not None]
    if found:
        words = ", and with ".join(f"{flag}, {conflicts[flag]}" for flag in found)
        yield InstallerError(
            f"configure {name} ({whose} with {words})",
            remedy=f"move {' and '.join(found)} from its command line to its config, and restart it",
            code="engine-flags",
        )


def read_start(host: Host, engine: EngineState) -> Started | None:
    """Return how the engine that runs was started; None where that is not known."""
    process = process_path(host, engine)
    words = _strings(process / "cmdline") if process else ()
    if process is None or not words:
        return None
    # Of the unit where that of the process may not be read.
    environment = _pairs(_strings(process / "environ")) or _pairs(unit_start(host, engine).environment)
    kept = {name: value for name, value in environment.items() if not name.startswith(OF_ITS_PROCESS)}
    return Started(words[1:], kept, words[0])


def began_s(host: Host, engine: EngineState) -> float | None:
    """Return when the process of an engine began, in seconds of the wall clock; None if unknown."""
    process = process_path(host, engine)
    after_boot_s = started_of(int(process.name), process.parent) if process else None
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return None if after_boot_s is None else booted_s + after_boot_s


def unit_start(host: Host, engine: EngineState) -> systemd.UnitStart:
    """Return what systemd has read of an engine's unit; nothing where it cannot be asked."""
    with suppress(InstallerError):
        return systemd.read_unit(host, engine.unit).start if engine.unit else systemd.UnitStart()
    return systemd.UnitStart()


def next_start(host: Host, engine: EngineState, unit: systemd.UnitStart) -> Started | None:
    """Return how its unit will start an engine, which env or nice may do; None where that is not known."""
    try:
        environment = _pairs(unit.environment)
        for path in unit.environment_files:  # a name, an equals sign, a value, quoted or not, on each line
            file = host.read(PurePosixPath(path))
            lines = map(str.strip, file.content.decode(errors="replace").splitlines() if file else ())
            pairs = _pairs([line for line in lines if line[:1] not in {"#", ";"}])
            environment |= {name: value.strip().strip("\"'") for name, value in pairs.items()}
    except InstallerError:
        return None
    words = [*unit.words[:1]]
    for word in unit.words[1:]:  # as systemd makes them: a variable that is a word may become several words
        if word[:1] == "$" and word[1:].isidentifier():
            words += environment.get(word[1:], "").split()
        else:
            words.append(VARIABLE.sub(lambda found: environment.get(found[1], ""), word))
    for index, word in enumerate(words):
        program = word[:1] == "/" or not index
        if program and " " not in word and PurePosixPath(word).name == engine.spec.process:
            return Started(tuple(words[index + 1 :]), environment, word)
    return None


def drop_flags(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line but for some flags and their values."""
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag not in flags:
            yield word
        elif not equals:
            next(rest, "")


def process_path(host: Host, engine: EngineState) -> Path | None:
    """Return the process of an engine, a directory of /proc; None where it is not seen."""
    if engine.pid is not None:
        return Path("/proc", str(engine.pid))
    # Without the host's pid namespace systemd tells the number, and the host's own /proc the rest.
    try:
        pid = systemd.read_unit(host, engine.unit).main_pid if engine.unit else 0
    except InstallerError:
        return None
    process = host.local_path(PROC) / str(pid)
    # Our own /proc, of another pid namespace, has another process under that number, or none.
    return process if _strings(process / "comm") == (f"{engine.spec.process}\n",) else None


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _strings(here: Path) -> tuple[str, ...]:
    """Return the strings of a file of /proc, which zero bytes end; none where it cannot be read."""
    try:
        text = here.read_bytes().decode(errors="surrogateescape")
    except OSError:
        return ()
    return tuple(text.removesuffix("\0").split("\0")) if text else ()
