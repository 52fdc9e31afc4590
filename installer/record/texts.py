"""Texts of the host that anybody may have written, as far as they can be read."""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.host.devices import size_of
from installer.host.files import Host

TEXT_BYTES: Final = 16 << 20


def text(host: Host, path: PurePosixPath) -> str:
    """Return the text of a file, whatever its bytes; "" where it cannot be read, or is far too large."""
    try:
        file = host.read(path) if size_of(host, path) <= TEXT_BYTES else None
    except InstallerError:
        return ""
    return file.content.decode(errors="replace") if file else ""
