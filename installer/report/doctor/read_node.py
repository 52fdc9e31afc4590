"""A node as ``doctor`` judges it: reads only, each question with an end, what fails is left open."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from installer.cdi.specification import devices, named_paths
from installer.change.search import SPEC_DIRS, SPEC_SUFFIXES
from installer.engines import ENGINES
from installer.engines.command_line import path_of, value_of
from installer.engines.config_edits import tree_of
from installer.engines.dependencies import driver_root
from installer.errors import InstallerError
from installer.host.files import Host, is_absent, is_file, text, used_percent
from installer.host.kernel import character_devices, kernel_log
from installer.host.processes import Seen, inotify_instances, of_root, sees_host
from installer.host.sockets import is_listened_on
from installer.lifecycle.installation import Installation, Line, read_installation
from installer.model.files import DRIVER_LIBRARY_DIRS
from installer.model.options import GPU_KIND, Options
from installer.model.record import Record
from installer.nri.state import lines as plugin_lines
from installer.report.doctor import model, read_programs, system

PCI: Final = PurePosixPath("/sys/bus/pci/devices")
VENDOR: Final = "0x10de"
MODULES: Final = PurePosixPath("/sys/module")
DRIVER_PROC: Final = PurePosixPath("/proc/driver/nvidia")
VERSION: Final = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
MAJOR: Final = re.compile(r"^ *(\d{1,9}) +(.*\S)", re.MULTILINE | re.ASCII)
CHAR_LINK: Final = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
DEV: Final = PurePosixPath("/dev")
SECURE_BOOT: Final = PurePosixPath(
    "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)
PERSISTENCED: Final = PurePosixPath("/run/nvidia-persistenced/socket")
SOCKET: Final = {None: "absent", True: "answers", False: "dead"}
LOG_WORDS: Final = ("NVRM", "nvidia", "Key was rejected", "Required key", "unsigned module", 'peer="runc"')
MINOR: Final = re.compile(r"DeviceFileMinor:\s*(\d{1,6})")
HOST_PATH: Final = re.compile(r"""["']?hostPath["']?:\s*["']?(/[^"'\s,]{1,1000})""")
MOST_PATHS: Final = 2000  # of one specification
SYS: Final = PurePosixPath("/sys")
KERNEL_LOG: Final = PurePosixPath("/dev/kmsg")
PLACES: Final = (
    "/run",
    "/",
    "/usr/local",
    "/var",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
)
BOOLEANS: Final = ("container_use_devices", "container_use_xserver_devices")
KUBELET_CONFIG: Final = PurePosixPath("/var/lib/kubelet/config.yaml")
CGROUP_DRIVER: Final = re.compile(r"^cgroupDriver:\s*[\"']?(systemd|cgroupfs)\b", re.MULTILINE)
INOTIFY_LIMIT: Final = PurePosixPath("/proc/sys/fs/inotify/max_user_instances")


def read_node(host: Host, options: Options) -> model.Node:
    """Return everything that is judged; nothing is written, locked, started or signalled."""
    installation = _read_installation(host, options)
    record = installation.record or Record()
    processes = tuple(of_root(host, unread=True))
    toolkits = tuple(read_programs.read_toolkits(host, options))
    engines = read_programs.read_engines(host, options, processes)
    return model.Node(
        driver=read_driver(host, _choose_driver_root(host, options, toolkits)),
        specs=tuple(read_specifications(host)),
        toolkits=toolkits,
        engines=engines,
        processes=read_programs.ask_processes(host, processes),
        runc=read_programs.ask_runc(host),
        programs=_find_programs(host, toolkits, engines),
        installed=tuple((line.what, line.state, line.good) for line in installation.files),
        by_cdi=record.cdi,
        plugin=tuple((state, good) for _, state, good, _ in plugin_lines(host, options.nri, record)),
        configured={
            row.name: (row.unit, read_programs.read_unit_state(host, row.unit)) for row in record.engines
        },
        system=_read_system(host, processes),
        sees_host=sees_host(host),
    )


def _read_installation(host: Host, options: Options) -> Installation:
    try:
        return read_installation(host, options)
    except InstallerError as error:
        return Installation(None, None, (Line("status", error.problem, good=False),), ())


def _choose_driver_root(host: Host, options: Options, toolkits: tuple[model.Toolkit, ...]) -> PurePosixPath:
    """Return where the toolkit looks for the driver: as its config says, else where there is one."""
    for toolkit in toolkits:
        root = toolkit.value("nvidia-container-cli", "root")
        if isinstance(root, str) and root.startswith("/"):
            return PurePosixPath(root)
    usual = PurePosixPath(driver_root(host, options)[0])
    return usual if _list_names(host, usual) else model.ROOT


def _find_programs(
    host: Host, toolkits: tuple[model.Toolkit, ...], engines: tuple[model.EngineExam, ...]
) -> frozenset[str]:
    """Return those programs that a config names by a path and that are there."""
    words = {program for exam in engines for program in exam.binaries.values()}
    for toolkit in toolkits:
        for table in (toolkit.config or {}).values():
            for value in table.values() if isinstance(table, dict) else ():
                values = value if isinstance(value, list) else [value]
                words |= {word.removeprefix("@") for word in values if isinstance(word, str)}
    paths = {word for word in words if word.startswith("/") and "\0" not in word}
    return frozenset(path for path in paths if is_file(host, PurePosixPath(path)))


def read_driver(host: Host, root: PurePosixPath) -> model.Driver:
    """Return the driver whose libraries are below ``root``."""
    libraries = (
        name
        for directory in DRIVER_LIBRARY_DIRS
        for name in _list_names(host, root / directory.relative_to("/"))
        if name.startswith("libnvidia-ml.so.")
    )
    modules = ("nvidia", "nvidia_uvm", "nouveau")
    version = text(host, MODULES / "nvidia/version").strip() or text(host, DRIVER_PROC / "version")
    found = VERSION.search(version[:1000])
    characters = text(host, PurePosixPath("/proc/devices")).partition("Block devices:")[0]
    links = (CHAR_LINK.fullmatch(name) for name in _list_names(host, DEV / "char"))
    return model.Driver(
        functions=tuple(_read_functions(host)),
        modules=frozenset(name for name in modules if host.exists(MODULES / name)),
        version=found[1] if found else "",
        root=root,
        libraries=tuple(libraries),
        majors={name: int(number) for number, name in MAJOR.findall(characters)},
        nodes=tuple(_read_device_nodes(host)),
        char_links=frozenset((int(link[1]), int(link[2])) for link in links if link),
        log=kernel_log(host.local_path(KERNEL_LOG), LOG_WORDS),
        secure_boot=text(host, SECURE_BOOT).endswith("\x01"),
        persistenced=SOCKET[is_listened_on(host.local_path(PERSISTENCED))],
        mig_minors=tuple(sorted(_read_mig_minors(host))),
    )


def _list_names(host: Host, path: PurePosixPath) -> tuple[str, ...]:
    """Return the names in a directory; none where it cannot be read."""
    with suppress(InstallerError):
        return host.names(path)
    return ()


def _read_functions(host: Host) -> Iterator[model.Function]:
    for address in _list_names(host, PCI):
        if text(host, PCI / address / "vendor").strip() == VENDOR:
            driver = PurePosixPath(host.link_target(PCI / address / "driver") or "").name
            with suppress(ValueError):
                yield model.Function(address, int(text(host, PCI / address / "class"), 16) >> 8, driver)


def _read_device_nodes(host: Host) -> Iterator[model.DeviceNode]:
    for directory in (DEV, DEV / "nvidia-caps"):
        for name, major, minor, label in character_devices(host.local_path(directory), "nvidia"):
            yield model.DeviceNode(directory / name, major, minor, label)


def _read_mig_minors(host: Host) -> Iterator[int]:
    gpus = DRIVER_PROC / "capabilities"
    for instances in (gpus / gpu / "mig" for gpu in _list_names(host, gpus)):
        for place in (instances / name for name in _list_names(host, instances)):
            for access in (place / "access", *(place / name / "access" for name in _list_names(host, place))):
                if is_file(host, access) and (found := MINOR.search(text(host, access))):
                    yield int(found[1])


def read_specifications(host: Host) -> Iterator[model.Spec]:
    """Yield the CDI specifications that engines would read."""
    for path in (directory / name for directory in SPEC_DIRS for name in _list_names(host, directory)):
        if path.suffix in SPEC_SUFFIXES:
            content = text(host, path)
            paths = dict.fromkeys((*named_paths(content), *HOST_PATH.findall(content))[:MOST_PATHS])
            gone = tuple(each for each in paths if is_absent(host, PurePosixPath(each)))
            try:
                yield model.Spec(path, content, gone, devices(content, GPU_KIND))
            except InstallerError as error:
                yield model.Spec(path, content, gone, unreadable=f"{path}: cannot {error.problem}")


def _read_system(host: Host, processes: Sequence[Seen]) -> model.System:
    units = sorted({unit for each in ENGINES.values() for unit in (each.unit, *each.units)})
    selinux = SYS / "fs/selinux"
    booleans = [text(host, selinux / "booleans" / name) for name in BOOLEANS]
    profiles = text(host, SYS / "kernel/security/apparmor/profiles").splitlines()
    limit = text(host, INOTIFY_LIMIT).strip()
    shares = [(path, used_percent(host, path)) for path in map(PurePosixPath, PLACES)]
    return model.System(
        cgroup2=host.exists(SYS / "fs/cgroup/cgroup.controllers"),
        tegra=host.exists(PurePosixPath("/etc/nv_tegra_release")),
        selinux_enforcing=text(host, selinux / "enforce").strip() == "1",
        devices_for_containers=any(boolean.startswith("1") for boolean in booleans),
        apparmor_profiles=frozenset(line.rpartition(" (")[0] for line in profiles),
        inotify=(inotify_instances(host), int(limit) if limit.isascii() and limit.isdigit() else 0),
        spaces=tuple(model.Space(path, *share) for path, share in shares if share is not None),
        units={
            unit: state
            for unit in (*system.UNITS, *units)
            if (state := read_programs.read_unit_state(host, unit))
        },
        kubelet_cgroups=_read_kubelet_cgroups(host, processes),
        refused=dict(_find_refused_files(host)),
    )


def _find_refused_files(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the units of engines with the file in their directory that they do not start with."""
    for engine in ENGINES.values():
        if engine.drop_ins.directory is None or engine.generated is None:
            continue
        for name in _list_names(host, engine.drop_ins.directory):
            path = engine.drop_ins.directory / name
            with suppress(InstallerError):
                tree = tree_of(host.read(path), path) if fnmatchcase(name, engine.drop_ins.pattern) else {}
                if reason := engine.generated.refuses(tree):
                    yield from ((unit, f"{path} {reason}") for unit in engine.units)


def _read_kubelet_cgroups(host: Host, processes: Sequence[Seen]) -> str:
    kubelet = next((each for each in processes if each.name == "kubelet" and each.of_host), None)
    if kubelet is None:
        return ""
    if driver := value_of(kubelet.cmdline, ("--cgroup-driver",)):
        return driver
    config = path_of(kubelet.cmdline, ("--config",)) or KUBELET_CONFIG
    found = CGROUP_DRIVER.search(text(host, config))
    return found[1] if found else ""
