"""What a node tells besides its settings: its family, driver, distribution, another install-dir of ours."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES, generating
from installer.decide.engines.model import is_ours
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts
from installer.decide.inode import File
from installer.decide.layout import DEFAULT_DRIVER_ROOT, DRIVER_LIBRARY_DIRS, Layout
from installer.decide.options import AUTO, Options
from installer.decide.parts.toolkit import VERSIONS
from installer.decide.rows import Record
from installer.host import cri
from installer.host.files import Host
from installer.record import units
from installer.record.lost import TOOLKITS

KUBELET: Final = PurePosixPath("/var/lib/kubelet")
ASK_S: Final = 5.0
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
OS_RELEASE: Final = PurePosixPath("/etc/os-release")


def is_suse(host: Host) -> bool:
    """Tell whether the host is of the SUSE family."""
    return "suse" in _os_release(host).get("ID_LIKE", "")


def moved(host: Host, options: Options, contents: Iterable[File | None]) -> Iterator[InstallerError]:
    """Yield why an install-dir cannot move: an engine still names the toolkit in another one of ours."""
    files = [file for file in contents if file is not None]
    found = {place for file in files for place in TOOLKITS.findall(file.content)}
    for place in sorted(PurePosixPath(path.decode(errors="surrogateescape")) for path in found):
        if place != options.install_dir and host.exists(Layout(place).ledger):
            yield InstallerError(
                f"install into {options.install_dir} (the toolkit in {place} is still in use)",
                remedy=f"free that first: toolkit-installer uninstall --install-dir {place}",
                code="installed-elsewhere",
            )


def in_place(host: Host, layout: Layout) -> PurePosixPath | None:
    """Return the directory of the version of ours that the toolkit's name leads to."""
    link = host.link_target(layout.toolkit) or ""
    return layout.install_dir / link if link.startswith(VERSIONS) else None


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


def without_unused(
    host: Host, held: Record, engines: tuple[EngineFacts, ...]
) -> tuple[tuple[EngineFacts, ...], tuple[str, ...]]:
    """Return the engines less a containerd that only serves Docker, CRI switched on or not; and a note of it.

    A kubelet, a pod, a runtime of ours tell that its CRI is used, and what cannot be asked counts as used.
    """
    for name, other in ((each.name, ENGINES[each.name].uses) for each in engines):
        beside = next((each for each in engines if each.name == other), None)
        if beside is None:
            continue
        serving = beside.serving.binaries.values() if beside.serving else ()
        ours = any(row.name == other for row in held.engines) or any(is_ours(each) for each in serving)
        if ours or host.names(KUBELET) or _runs_pods(host, beside):
            continue
        left = tuple(each for each in engines if each is not beside)
        unused = f"it serves {ENGINES[name].title}, and nobody uses its CRI (no kubelet, no pod)"
        return left, (f"left {other} alone: {unused}",)
    return engines, ()


def without_cri(host: Host, beside: Collection[str]) -> str:
    """Return why a containerd without CRI is left alone; ``beside`` are the engines that run, too."""
    served = next((each for each in beside if ENGINES[each].uses), "")
    usual = f", it serves {ENGINES[served].title}" if served else ""
    image = IMAGES.get(_os_release(host).get("ID", ""))
    return f"its CRI is switched off{f': {image[0]}' if image else usual}"


def served_by_image(host: Host) -> Iterator[InstallerError]:
    """Yield why nothing is installed on a system that brings the toolkit in its own way."""
    image = IMAGES.get(_os_release(host).get("ID", ""))
    if image is not None:
        yield InstallerError(f"install on this node ({image[0]})", remedy=image[1], code="not-supported")


def _os_release(host: Host) -> dict[str, str]:
    file = host.read(OS_RELEASE)
    lines = file.content.decode(errors="replace").splitlines() if file else []
    return {name: value.strip("\"'") for name, _, value in (line.partition("=") for line in lines)}


def _runs_pods(host: Host, engine: EngineFacts) -> bool:
    try:
        return bool(cri.sandboxes(host.local_path(engine.socket), timeout_s=ASK_S))
    except InstallerError:
        return True


def refuse_unknown(host: Host, facts: EngineFacts) -> None:
    """Raise where nobody can tell whose containerd it is that answers on the socket of k3s and RKE2."""
    socket = ENGINES[facts.name].socket
    candidates = [unit for engine in ENGINES.values() if engine.socket == socket for unit in engine.units]
    if not any(units.runs(host, unit) for unit in candidates):
        raise InstallerError(
            f"tell whose containerd answers on {facts.socket} (none of {', '.join(candidates)} runs)",
            remedy=Remedy("name the engines with ", Option("runtime"), ", without k3s and rke2"),
            code="engine-unknown",
        )


def refuse_generated(facts: EngineFacts) -> None:
    """Raise where another engine makes the config anew at each start, so that no edit of ours would last."""
    names = generating(ENGINES[facts.name].process, facts.config, facts.socket)
    if names:
        whose = " or ".join(ENGINES[name].title for name in names)
        flags = " or ".join(f"--runtime {name}" for name in names)
        raise InstallerError(
            f"configure the containerd of {whose} (it writes {facts.config} itself)",
            remedy=f"run toolkit-installer with {flags}",
            code="engine-generates-config",
        )
