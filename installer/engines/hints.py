"""What a node tells of itself besides its engines: its distribution, and where the driver is."""

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.host.files import Host, text
from installer.model.options import AUTO, Options
from installer.model.paths import DEFAULT_DRIVER_ROOT, DRIVER_LIBRARY_DIRS

# By ID in os-release: systems whose root is an image and whose engines' configs are made of their settings.
IMAGES: Final = {
    "talos": (
        "on Talos the toolkit is a system extension, and runtimes come from the machine config",
        "add both there",
    ),
    "bottlerocket": (
        "Bottlerocket's image for NVIDIA has the toolkit and its runtime, nothing is installed",
        "start this node from that image",
    ),
}
OS_RELEASES: Final = (PurePosixPath("/etc/os-release"), PurePosixPath("/usr/lib/os-release"))


def is_suse(host: Host) -> bool:
    """Tell whether the host is of the SUSE family."""
    return "suse" in read_os_release(host).get("ID_LIKE", "")


def without_cri(host: Host, beside: Collection[str]) -> str:
    """Return why a containerd without CRI is left alone; ``beside`` are the engines that run, too."""
    served = next((each for each in beside if ENGINES[each].uses), "")
    usual = f", it serves {ENGINES[served].title}" if served else ""
    image = IMAGES.get(read_os_release(host).get("ID", ""))
    return f"its CRI is switched off{f': {image[0]}' if image else usual}"


def served_by_image(host: Host) -> Iterator[InstallerError]:
    """Yield why nothing is installed on a system that brings the toolkit in its own way."""
    image = IMAGES.get(read_os_release(host).get("ID", ""))
    if image is not None:
        yield InstallerError(f"install on this node ({image[0]})", remedy=image[1], code="not-supported")


def read_os_release(host: Host) -> dict[str, str]:
    """Return what os-release(5) says of the host, of its two places the first that can be read."""
    lines = next(filter(None, (text(host, path) for path in OS_RELEASES)), "").splitlines()
    return {name: value.strip("\"'") for name, _, value in (line.partition("=") for line in lines)}


def driver_root(host: Host, options: Options) -> tuple[str, tuple[str, ...]]:
    """Return where the host finds the driver, and a note where it is on the host itself.

    A container's driver goes first, as it does for the GPU Operator; where there is none, one may come yet.
    """
    usual = str(DEFAULT_DRIVER_ROOT)
    named = usual if options.driver_root == AUTO else options.driver_root
    if named != usual or host.names(DEFAULT_DRIVER_ROOT):
        return named, ()
    for directory in DRIVER_LIBRARY_DIRS:
        if any(name.startswith("libnvidia-ml.so.") for name in host.names(directory)):
            found = f"{usual} is empty and {directory} holds the driver"
            if options.driver_root == AUTO:
                return "/", (f"{found}: the toolkit looks for it in /",)
            return usual, (f"{found}: consider --driver-root /",)
    return usual, ()
