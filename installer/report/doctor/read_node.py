"""A node as ``doctor`` judges it: reads only, each question with an end, what fails is left open."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from installer.cdi.specification import named_paths
from installer.change.search import SPEC_DIRS, SPEC_SUFFIXES
from installer.engines import ENGINES
from installer.engines.command_line import path_of, value_of
from installer.engines.config_edits import tree_of
from installer.engines.dependencies import driver_root
from installer.errors import InstallerError
from installer.host.devices import character_devices, kernel_log, listens, used
from installer.host.files import Host, is_absent, is_file, text
from installer.host.limits import beside
from installer.host.processes import Seen, inotify_instances, of_root, sees_host
from installer.model.options import Options
from installer.model.paths import DRIVER_LIBRARY_DIRS
from installer.report.doctor.model import (
    ROOT,
    DeviceNode,
    Driver,
    EngineExam,
    Function,
    Node,
    Space,
    Spec,
    System,
    Toolkit,
)
from installer.report.doctor.read_programs import asked_processes, asked_runc, engines, toolkits, unit_state


def examine(host: Host, options: Options) -> Node:
    """Return everything that is judged; nothing is written, locked, started or signalled."""
    seen = tuple(of_root(host, unread=True))
    with beside() as begin:
        # What is asked of programs and engines waits for different things.
        processes = begin(lambda: asked_processes(host, seen), long=True)
        runc = begin(lambda: asked_runc(host), long=True)
        found = begin(lambda: tuple(toolkits(host, options)), long=True)
        running = begin(lambda: engines(host, options, seen), long=True)
        node = system(host, seen)
        there = found()
        return Node(
            driver=driver(host, _driver_root(host, options, there)),
            specs=tuple(specifications(host)),
            toolkits=there,
            engines=running(),
            processes=processes(),
            runc=runc(),
            programs=_programs(host, there, running()),
            system=node,
            sees_host=sees_host(host),
        )


def _driver_root(host: Host, options: Options, found: tuple[Toolkit, ...]) -> PurePosixPath:
    """Return where the toolkit looks for the driver: as its config says, else where there is one."""
    for toolkit in found:
        root = toolkit.value("nvidia-container-cli", "root")
        if isinstance(root, str) and root.startswith("/"):
            return PurePosixPath(root)
    named = PurePosixPath(driver_root(host, options)[0])
    return named if names(host, named) else ROOT


def _programs(host: Host, found: tuple[Toolkit, ...], running: tuple[EngineExam, ...]) -> frozenset[str]:
    """Return those of the programs that somebody names by a path that are there."""
    named: set[str] = set()
    for toolkit in found:
        for table in (toolkit.config or {}).values():
            for value in table.values() if isinstance(table, dict) else ():
                words = value if isinstance(value, list) else [value]
                named |= {word.removeprefix("@") for word in words if isinstance(word, str)}
    named |= {program for exam in running for program in exam.binaries.values()}
    paths = {path for path in named if path.startswith("/") and "\0" not in path}
    return frozenset(path for path in paths if is_file(host, PurePosixPath(path)))


PCI: Final = PurePosixPath("/sys/bus/pci/devices")
VENDOR: Final = "0x10de"
MODULES: Final = PurePosixPath("/sys/module")
COUNTED: Final = ("nvidia", "nvidia_uvm", "nouveau")
DRIVER_PROC: Final = PurePosixPath("/proc/driver/nvidia")
VERSION: Final = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
DEV: Final = PurePosixPath("/dev")
SECURE_BOOT: Final = PurePosixPath(
    "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)
PERSISTENCED: Final = PurePosixPath("/run/nvidia-persistenced/socket")
SOCKET: Final = {None: "absent", True: "answers", False: "dead"}
LOG_WORDS: Final = ("NVRM", "nvidia", "Key was rejected", "Required key", "unsigned module", 'peer="runc"')
MINOR: Final = re.compile(r"DeviceFileMinor:\s*(\d{1,6})")
HOST_PATH: Final = re.compile(r"""["']?hostPath["']?:\s*["']?(/[^"'\s,]{1,1000})""")
NAMED: Final = 2000  # paths of one specification


def driver(host: Host, root: PurePosixPath) -> Driver:
    """Return the driver whose libraries are below ``root``."""
    return Driver(
        functions=tuple(_functions(host)),
        modules=frozenset(name for name in COUNTED if host.exists(MODULES / name)),
        version=_version(host),
        root=root,
        libraries=tuple(_libraries(host, root)),
        majors=dict(_majors(text(host, PurePosixPath("/proc/devices")))),
        nodes=tuple(_nodes(host)),
        char_links=frozenset(_links(host)),
        log=kernel_log(host, LOG_WORDS),
        secure_boot=_secure_boot(host),
        persistenced=SOCKET[listens(host, PERSISTENCED)],
        mig_minors=tuple(sorted(_mig(host))),
    )


def names(host: Host, path: PurePosixPath) -> tuple[str, ...]:
    """Return the names in a directory; none where it cannot be read."""
    try:
        return host.names(path)
    except InstallerError:
        return ()


def _functions(host: Host) -> Iterator[Function]:
    for address in names(host, PCI):
        if text(host, PCI / address / "vendor").strip() != VENDOR:
            continue
        kind = text(host, PCI / address / "class").strip()
        driven = host.link_target(PCI / address / "driver") or ""
        try:
            yield Function(address, int(kind, 16) >> 8, PurePosixPath(driven).name)
        except ValueError:
            continue


def _version(host: Host) -> str:
    said = text(host, MODULES / "nvidia/version").strip() or text(host, DRIVER_PROC / "version")
    found = VERSION.search(said[:1000])
    return found[1] if found else ""


def _libraries(host: Host, root: PurePosixPath) -> Iterator[str]:
    for directory in DRIVER_LIBRARY_DIRS:
        found = names(host, root / directory.relative_to("/"))
        yield from (name for name in found if name.startswith("libnvidia-ml.so."))


def _majors(devices: str) -> Iterator[tuple[str, int]]:
    for line in devices.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isascii() and number.isdigit():
            yield name.strip(), int(number)


def _nodes(host: Host) -> Iterator[DeviceNode]:
    for directory in (DEV, DEV / "nvidia-caps"):
        try:
            for name, major, minor, label in character_devices(host, directory, "nvidia"):
                yield DeviceNode(directory / name, major, minor, label)
        except InstallerError:
            continue


def _links(host: Host) -> Iterator[tuple[int, int]]:
    for name in names(host, DEV / "char"):
        major, colon, minor = name.partition(":")
        if colon and f"{major}{minor}".isascii() and major.isdigit() and minor.isdigit():
            yield int(major), int(minor)


def _secure_boot(host: Host) -> bool:
    try:
        file = host.read(SECURE_BOOT)
    except InstallerError:
        return False
    return file is not None and file.content[-1:] == b"\x01"


def _mig(host: Host) -> Iterator[int]:
    above = DRIVER_PROC / "capabilities"
    for gpu in names(host, above):
        for instance in names(host, above / gpu / "mig"):
            place = above / gpu / "mig" / instance
            for access in (place / "access", *(place / each / "access" for each in names(host, place))):
                if is_file(host, access) and (found := MINOR.search(text(host, access))):
                    yield int(found[1])


def specifications(host: Host) -> Iterator[Spec]:
    """Yield the CDI specifications that engines would read."""
    for directory in SPEC_DIRS:
        for name in names(host, directory):
            if PurePosixPath(name).suffix in SPEC_SUFFIXES:
                found = text(host, directory / name)
                paths = dict.fromkeys((*named_paths(found), *HOST_PATH.findall(found))[:NAMED])
                gone = [path for path in paths if is_absent(host, PurePosixPath(path))]
                yield Spec(directory / name, found, tuple(gone))


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
