"""Every host path, named once."""

from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

HOME: Final = ".toolkit-installer"
VERSIONS: Final = f"{HOME}/versions/"  # how the toolkit's link begins: so it holds in every mount of the host
DEFAULT_INSTALL_DIR: Final = PurePosixPath("/usr/local/nvidia")
DEFAULT_DRIVER_ROOT: Final = PurePosixPath("/run/nvidia/driver")
RUN_DIR: Final = PurePosixPath("/run/nvidia/toolkit")
# The bus first, where a connection outlives a daemon-reexec. systemd's own socket is there without a bus,
# and at a shutdown, which ends the bus before us.
SYSTEM_BUSES: Final = (
    PurePosixPath("/run/dbus/system_bus_socket"),
    PurePosixPath("/run/systemd/private"),
)
# Where distributions put programs, relative to a root.
EXECUTABLE_DIRS: Final = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
# Where systemd and shells look for programs that a word names, unless told otherwise.
PATH: Final = tuple(PurePosixPath("/", place) for place in EXECUTABLE_DIRS)
# Where distributions put the driver's libraries when it is installed on the host itself.
DRIVER_LIBRARY_DIRS: Final = tuple(
    PurePosixPath(path)
    for path in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")
)


class Layout(Struct, frozen=True):
    """The paths below one install-dir, as the host sees them."""

    install_dir: PurePosixPath = DEFAULT_INSTALL_DIR

    @property
    def toolkit(self) -> PurePosixPath:
        """The symlink that engines name their runtimes through."""
        return self.install_dir / "toolkit"

    @property
    def home(self) -> PurePosixPath:
        """The directory that is ours alone."""
        return self.install_dir / HOME

    @property
    def ledger(self) -> PurePosixPath:
        """What we hold on this node and what was there before."""
        return self.home / "ledger"

    @property
    def counts(self) -> PurePosixPath:
        """What has happened on this node, for its metrics."""
        return self.home / "counts"

    @property
    def made(self) -> PurePosixPath:
        """What ``verify`` makes in the engines, by name."""
        return self.home / "made"

    @property
    def answer(self) -> PurePosixPath:
        """What those are sent who ask ``run`` for metrics."""
        return self.home / "metrics.openmetrics"

    @property
    def backups(self) -> PurePosixPath:
        """Files as they were before us."""
        return self.home / "backups"

    @property
    def unclaimed(self) -> PurePosixPath:
        """Configs as they were before an install whose ledger, which says where they stood, is lost."""
        return self.home / "unclaimed"

    @property
    def check(self) -> PurePosixPath:
        """Where CRI-O's drop-ins are put together for its own program to read."""
        return self.home / "check"

    @property
    def replaced(self) -> PurePosixPath:
        """A toolkit directory of another installer, kept for undo."""
        return self.home / "replaced"

    @property
    def versions(self) -> PurePosixPath:
        """One directory for each payload."""
        return self.home / "versions"

    def version(self, digest: str) -> PurePosixPath:
        """Return the directory of one payload."""
        return self.versions / digest

    @property
    def config(self) -> PurePosixPath:
        """The installed toolkit's own configuration."""
        return self.toolkit / ".config/nvidia-container-runtime/config.toml"


def cdi_hook(layout: Layout) -> PurePosixPath:
    """Return the hook program of the toolkit, which our CDI specifications name."""
    return layout.toolkit / "nvidia-cdi-hook"
