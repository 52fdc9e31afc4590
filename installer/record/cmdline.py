"""What the command line of a running engine says of its config, its state, and of what overrules both."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from installer.decide.configs import tree_of
from installer.decide.effect import Flags
from installer.decide.engines.row import Engine
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.options import Options
from installer.host.files import Host

Words = Sequence[str]


def value_of(cmdline: Words, names: Sequence[str]) -> str | None:
    """Return the value of a flag, "" for one without; None where it is not given."""
    words = iter(cmdline)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in names:
            return value if equals else next(words, "")
    return None


def flags_of(engine: Engine, cmdline: Words, environment: Mapping[str, str]) -> Flags:
    """Return what an engine was told of runtimes when it was started; a flag wins over a variable."""
    by = engine.cmdline.telling
    if by is None:
        return Flags()
    default = value_of(cmdline, (by.default,)) or environment.get(by.default_variable, "")
    told = tuple(_values_of(cmdline, by.runtime)) or (environment.get(by.runtime_variable, ""),)
    pairs = (word.split(by.between) for each in told for word in each.split(","))
    return Flags(default, {pair[0]: pair[1] for pair in pairs if len(pair) > 1})


def _values_of(cmdline: Words, name: str) -> Iterator[str]:
    """Yield all values of a flag that may be given more than once."""
    words = iter(cmdline)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == name:
            yield value if equals else next(words, "")


def path_of(cmdline: Words, names: Sequence[str]) -> PurePosixPath | None:
    """Return the path that a flag gives; None for one that is relative to who knows what."""
    named = value_of(cmdline, names)
    return PurePosixPath(named) if named and named.startswith("/") else None


def state_of(host: Host, engine: Engine, cmdline: Words, config: PurePosixPath) -> PurePosixPath | None:
    """Return where an engine keeps the state of its containers, if its command line or config tells."""
    place = engine.state
    said: object = value_of(cmdline, (place.flag,)) if place.flag else None
    if said is None and place.key:
        with suppress(InstallerError):
            said = tree_of(host.read(config), config).get(place.key)
    return PurePosixPath(said, place.below) if isinstance(said, str) and said.startswith("/") else None


def overruling(
    engine: Engine, cmdline: Words, options: Options, whose: str = "it was started"
) -> Iterator[InstallerError]:
    """Yield why a flag on the command line stands against what we would write; ``whose`` says which start."""
    by, name = engine.cmdline, engine.name
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
