"""Space on the host's disk: a new payload needs it beside the one in place."""

from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import Facts
from installer.decide.options import Options
from installer.decide.toolkit import Copy, PayloadFile

ROOM_FOR: Final = 2  # payloads: the one in place and the one that takes its place


def no_room(facts: Facts, options: Options, files: tuple[PayloadFile, ...]) -> tuple[InstallerError, ...]:
    """Return why there is no room for a payload of these files."""
    need = ROOM_FOR * sum(file.size_bytes for file in files if isinstance(file, Copy))
    if facts.free_bytes is None or facts.free_bytes >= need:
        return ()
    return (
        InstallerError(
            f"install into {options.install_dir} ({_size(facts.free_bytes)} are free, "
            f"two payloads take {_size(need)})",
            remedy=Remedy("free some space there, or choose another ", Option("install-dir")),
            code="no-space",
        ),
    )


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"
