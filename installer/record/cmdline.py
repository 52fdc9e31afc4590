"""What the command line of a running engine says of its config, its state, and of what overrules both."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
from installer.decide.effect import Flags
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.options import Options
from installer.host.files import Host

CONFIG: Final = {
    "docker": ("--config-file",),
    "containerd": ("--config", "-c"),
    "crio": ("--config", "-c"),
    "k3s": ("--config", "-c"),
    "rke2": ("--config", "-c"),
}
DROP_INS: Final = ("--config-dir", "-d")  # of CRI-O
# Flag and key by which an engine is told where its state is, and what is below it.
STATE: Final = {
    "docker": ("--exec-root", "exec-root", "containerd/daemon"),
    "containerd": ("--state", "state", ""),
    "k3s": ("--state", "state", ""),
    "rke2": ("--state", "state", ""),
}
# A dockerd with runtimes in its config loses those of its flags at each reload (20.10, 26.1 and 28.5).
CONFLICTS: Final = {"docker": {"--add-runtime": "which each reload with runtimes in its config undoes"}}
# dockerd does not start with a default in its config as well; the flags of CRI-O win.
CONFLICTS_AS_DEFAULT: Final = {"--default-runtime": "which its config may not say too"}
# What tells an engine of runtimes besides its files: the flag of a default, its variable, the flag of one
# runtime, its variable, and what is between the name of that and its path.
RUNTIMES: Final = {
    "docker": ("--default-runtime", "", "--add-runtime", "", "="),
    # cri-o internal/criocli/criocli.go
    "crio": ("--default-runtime", "CONTAINER_DEFAULT_RUNTIME", "--runtimes", "CONTAINER_RUNTIMES", ":"),
}

CommandLine = Sequence[str]


def value_of(cmdline: CommandLine, names: Sequence[str]) -> str | None:
    """Return the value of a flag, "" for one without; None where it is not given."""
    words = iter(cmdline)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in names:
            return value if equals else next(words, "")
    return None


def flags_of(name: str, cmdline: CommandLine, environment: Mapping[str, str]) -> Flags:
    """Return what an engine was told of runtimes when it was started; a flag wins over a variable."""
    if name not in RUNTIMES:
        return Flags()
    default_flag, default_variable, flag, variable, between = RUNTIMES[name]
    default = value_of(cmdline, (default_flag,)) or environment.get(default_variable, "")
    told = tuple(_values_of(cmdline, flag)) or (environment.get(variable, ""),)
    pairs = (word.split(between) for each in told for word in each.split(","))
    return Flags(default, {pair[0]: pair[1] for pair in pairs if len(pair) > 1})


def _values_of(cmdline: CommandLine, name: str) -> Iterator[str]:
    """Yield all values of a flag that may be given more than once."""
    words = iter(cmdline)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == name:
            yield value if equals else next(words, "")


def path_of(cmdline: CommandLine, names: Sequence[str]) -> PurePosixPath | None:
    """Return the path that a flag gives; None for one that is relative to who knows what."""
    named = value_of(cmdline, names)
    return PurePosixPath(named) if named and named.startswith("/") else None


def state_of(host: Host, name: str, cmdline: CommandLine, config: PurePosixPath) -> PurePosixPath | None:
    """Return where an engine keeps the state of its containers, if its command line or config tells."""
    if name not in STATE:
        return None
    flag, key, below = STATE[name]
    said: object = value_of(cmdline, (flag,))
    if said is None:
        with suppress(InstallerError):
            said = tree_of(host.read(config), config).get(key)
    return PurePosixPath(said, below) if isinstance(said, str) and said.startswith("/") else None


def overruling(
    name: str, cmdline: CommandLine, options: Options, whose: str = "it was started"
) -> Iterator[InstallerError]:
    """Yield why a flag on the command line stands against what we would write; ``whose`` says which start."""
    for names in (CONFIG.get(name, ()), DROP_INS if name == "crio" else ()):
        path = value_of(cmdline, names)
        if path and not path.startswith("/"):
            yield InstallerError(
                f"find the config of {name} ({whose} with {names[0]} {path}, a relative path)",
                remedy=Remedy(
                    "start it with the absolute path, or name that with ", Option("config", "PATH", name)
                ),
            )
    as_default = CONFLICTS_AS_DEFAULT if options.set_as_default and name in RUNTIMES else {}
    conflicts = as_default | CONFLICTS.get(name, {})
    found = [flag for flag in conflicts if value_of(cmdline, (flag,)) is not None]
    if found:
        told = ", and with ".join(f"{flag}, {conflicts[flag]}" for flag in found)
        yield InstallerError(
            f"configure {name} ({whose} with {told})",
            remedy=f"move {' and '.join(found)} from its command line to its config, and restart it",
        )
