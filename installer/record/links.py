"""Where symbolic links lead that configs and engines name programs by."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from installer.decide.errors import InstallerError
from installer.decide.facts import Facts
from installer.decide.inode import Kind
from installer.decide.layout import Layout
from installer.decide.references import programs_named
from installer.host.files import Host
from installer.record.live import PATH


def links_named(host: Host, facts: Facts, layout: Layout) -> dict[str, PurePosixPath]:
    """Return where each program really is that something names by a link, the install-dir as well.

    A link that a stranger could have placed leads nowhere: he decides nothing.
    """
    found = {}
    for value in dict.fromkeys((str(layout.install_dir), *_named(facts))):
        with suppress(InstallerError):
            path = _found(host, value)
            if path is not None and (real := host.resolve(path)) != path:
                found[value] = real
    return found


def _named(facts: Facts) -> Iterator[str]:
    for path, file in facts.contents.items():
        yield from programs_named(file, path)
    for values in facts.handed.values():
        yield from values
    for engine in facts.engines:
        yield from (*engine.flags.runtimes.values(), *engine.next_flags.runtimes.values())
        yield from engine.serving.binaries.values() if engine.serving else ()


def _found(host: Host, value: str) -> PurePosixPath | None:
    """Return where a program is, as an engine looks for it; None where there is none."""
    if "/" in value:
        return PurePosixPath(value) if value.startswith("/") else None
    return next((place / value for place in PATH if value and host.kind(place / value) is Kind.FILE), None)
