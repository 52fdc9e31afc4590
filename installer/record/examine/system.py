"""The node besides driver, toolkit and engines."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
from installer.decide.doctor.facts import Space, System
from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.host.devices import used
from installer.host.files import Host
from installer.host.process_table import Seen, inotify_instances
from installer.record.cmdline import path_of, value_of
from installer.record.examine.driver import names
from installer.record.examine.engines import unit_state
from installer.record.texts import text

SYS: Final = PurePosixPath("/sys")
PLACES: Final = tuple(
    PurePosixPath(path)
    for path in (
        "/run",
        "/",
        "/usr/local",
        "/var",
        "/var/lib/docker",
        "/var/lib/containerd",
        "/var/lib/containers",
    )
)
UNITS: Final = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-cdi-refresh.service")
BOOLEANS: Final = ("container_use_devices", "container_use_xserver_devices")
KUBELET_CONFIG: Final = PurePosixPath("/var/lib/kubelet/config.yaml")
CGROUP_DRIVER: Final = re.compile(r"^cgroupDriver:\s*[\"']?(systemd|cgroupfs)\b", re.MULTILINE)
LIMIT: Final = PurePosixPath("/proc/sys/fs/inotify/max_user_instances")


def system(host: Host, seen: Sequence[Seen]) -> System:
    """Return what is there."""
    engines = sorted({unit for each in ENGINES.values() for unit in (each.unit, *each.units)})
    selinux = SYS / "fs/selinux"
    profiles = text(host, SYS / "kernel/security/apparmor/profiles").splitlines()
    return System(
        cgroup2=host.exists(SYS / "fs/cgroup/cgroup.controllers"),
        tegra=host.exists(PurePosixPath("/etc/nv_tegra_release")),
        selinux_enforcing=text(host, selinux / "enforce").strip() == "1",
        devices_for_containers=any(
            text(host, selinux / "booleans" / name).startswith("1") for name in BOOLEANS
        ),
        apparmor_profiles=frozenset(line.rpartition(" (")[0] for line in profiles),
        inotify=_inotify(host),
        spaces=tuple(_spaces(host)),
        units={unit: state for unit in (*UNITS, *engines) if (state := unit_state(host, unit))},
        kubelet_cgroups=_kubelet(host, seen),
        refused=dict(_refused(host)),
    )


def _refused(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the units of engines with what a release of theirs does not start with."""
    for engine in ENGINES.values():
        directory = engine.drop_in_dir
        if directory is None or engine.generated is None:
            continue
        for path in sorted(directory / name for name in names(host, directory)):
            with suppress(InstallerError):
                tree = tree_of(host.read(path), path) if fnmatchcase(path.name, engine.drop_in_names) else {}
                if reason := engine.generated.refuses(tree):
                    yield from ((unit, f"{path} {reason}") for unit in engine.units)


def _inotify(host: Host) -> tuple[int, int]:
    limit = text(host, LIMIT).strip()
    return inotify_instances(host), int(limit) if limit.isascii() and limit.isdigit() else 0


def _spaces(host: Host) -> Iterator[Space]:
    for path in PLACES:
        share = used(host, path)
        if share is not None:
            yield Space(path, *share)


def _kubelet(host: Host, seen: Sequence[Seen]) -> str:
    kubelet = next((each for each in seen if each.name == "kubelet" and each.of_host), None)
    if kubelet is None:
        return ""
    if said := value_of(kubelet.cmdline, ("--cgroup-driver",)):
        return said
    config = path_of(kubelet.cmdline, ("--config",)) or KUBELET_CONFIG
    found = CGROUP_DRIVER.search(text(host, config))
    return found[1] if found else ""
