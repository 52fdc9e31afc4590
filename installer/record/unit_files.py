"""The command of a unit as its files say it, for systemd reads them only when it is told to."""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.host.files import Host

# systemd.unit(5): the first that has a file wins.
PLACES: Final = tuple(
    PurePosixPath(place)
    for place in (
        "/etc/systemd/system",
        "/run/systemd/system",
        "/usr/lib/systemd/system",
        "/lib/systemd/system",
    )
)
COMMAND: Final = "ExecStart"
PREFIXES: Final = "@-:+!|"


def command_of(host: Host, unit: str) -> tuple[str, ...]:
    """Return the command that the files of a unit come to, its program first; () where none says one."""
    words: tuple[str, ...] = ()
    for line in (line for path in _files(host, unit) for line in _lines(host, path)):
        name, equals, value = line.partition("=")
        if equals and name.strip() == COMMAND:
            with suppress(ValueError):  # quotes that are open: systemd drops such a line, too
                words = tuple(shlex.split(value.strip().lstrip(PREFIXES)))
    return words


def _files(host: Host, unit: str) -> Iterator[PurePosixPath]:
    """Yield the file of a unit, then its drop-ins in the order in which systemd reads them."""
    yield from [path for place in PLACES if host.exists(path := place / unit)][:1]
    found: dict[str, PurePosixPath] = {}
    for directory in (place / f"{unit}.d" for place in reversed(PLACES)):
        with suppress(InstallerError):
            found |= {name: directory / name for name in host.names(directory) if name.endswith(".conf")}
    yield from (found[name] for name in sorted(found))


def _lines(host: Host, path: PurePosixPath) -> list[str]:
    try:
        file = host.read(path)
    except InstallerError:
        return []
    text = file.content.decode(errors="replace") if file else ""
    return text.replace("\\\n", " ").splitlines()
