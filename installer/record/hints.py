"""What a node's files tell besides their settings: its family, its driver, another install-dir of ours."""

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.inode import File
from installer.decide.layout import DEFAULT_DRIVER_ROOT, DRIVER_LIBRARY_DIRS, Layout
from installer.decide.options import Options
from installer.host.files import Host

OS_RELEASE: Final = PurePosixPath("/etc/os-release")
_TOOLKITS: Final = re.compile(rb"""["'](/[^"'\n]*)/toolkit/nvidia-container-runtime["'.]""")


def is_suse(host: Host) -> bool:
    """Tell whether the host is of the SUSE family."""
    file = host.read(OS_RELEASE)
    lines = file.content.decode(errors="replace").splitlines() if file else []
    return any(line.startswith("ID_LIKE=") and "suse" in line for line in lines)


def moved(host: Host, options: Options, contents: Iterable[File | None]) -> Iterator[InstallerError]:
    """Yield why an install-dir cannot move: an engine still names the toolkit in another one of ours."""
    files = [file for file in contents if file is not None]
    found = {place for file in files for place in _TOOLKITS.findall(file.content)}
    for place in sorted(PurePosixPath(path.decode(errors="surrogateescape")) for path in found):
        if place != options.install_dir and host.exists(Layout(place).ledger):
            yield InstallerError(
                f"install into {options.install_dir} (the toolkit in {place} is still in use)",
                remedy=f"free that first: toolkit-installer uninstall --install-dir {place}",
            )


def driver_note(host: Host, options: Options) -> tuple[str, ...]:
    """Suggest ``/`` where the driver is installed on the host itself and not in a container."""
    if options.driver_root != str(DEFAULT_DRIVER_ROOT) or host.names(DEFAULT_DRIVER_ROOT):
        return ()
    for directory in DRIVER_LIBRARY_DIRS:
        if any(name.startswith("libnvidia-ml.so.") for name in host.names(directory)):
            return (
                f"{DEFAULT_DRIVER_ROOT} is empty and {directory} holds the driver: consider --driver-root /",
            )
    return ()
