"""What the command line of a running engine says of its config, its state, and of what overrules both."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
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
# dockerd does not start with a key that is a flag as well (engines.md 8); the flags of CRI-O win.
CONFLICTS: Final = {"docker": ("--add-runtime", "--default-runtime")}
CONFLICTS_AS_DEFAULT: Final = {"crio": ("--default-runtime",)}

CommandLine = Sequence[str]


def value_of(cmdline: CommandLine, names: Sequence[str]) -> str | None:
    """Return the value of a flag, "" for one without; None where it is not given."""
    words = iter(cmdline)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in names:
            return value if equals else next(words, "")
    return None


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


def overruling(name: str, cmdline: CommandLine, options: Options) -> Iterator[InstallerError]:
    """Yield why a flag on the command line stands against what we would write."""
    for names in (CONFIG.get(name, ()), DROP_INS if name == "crio" else ()):
        path = value_of(cmdline, names)
        if path and not path.startswith("/"):
            yield InstallerError(
                f"find the config of {name} (it was started with {names[0]} {path}, a relative path)",
                remedy=Remedy(
                    "start it with the absolute path, or name that with ", Option("config", "PATH", name)
                ),
            )
    as_default = CONFLICTS_AS_DEFAULT.get(name, ()) if options.set_as_default else ()
    for flag in (*CONFLICTS.get(name, ()), *as_default):
        if value_of(cmdline, (flag,)) is not None:
            yield InstallerError(
                f"configure {name} (it was started with {flag}, which its config may not say too)",
                remedy=f"move {flag} from its command line to its config, and restart it",
            )
