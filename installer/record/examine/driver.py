"""The driver: its GPUs, module, libraries, device nodes, and the CDI specifications for them."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.doctor.facts import DeviceNode, Driver, Function, Spec
from installer.decide.errors import InstallerError
from installer.decide.layout import DRIVER_LIBRARY_DIRS
from installer.decide.specification import named
from installer.host.devices import character_devices, kernel_log, listens
from installer.host.files import Host
from installer.record.handed import SPEC_DIRS, SPEC_SUFFIXES
from installer.record.texts import is_absent, is_file, text

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


def specifications(host: Host) -> tuple[Spec, ...]:
    """Return the CDI specifications that engines would read."""
    return tuple(_specifications(host))


def _specifications(host: Host) -> Iterator[Spec]:
    for directory in SPEC_DIRS:
        for name in names(host, directory):
            if PurePosixPath(name).suffix in SPEC_SUFFIXES:
                found = text(host, directory / name)
                paths = dict.fromkeys((*named(found), *HOST_PATH.findall(found))[:NAMED])
                gone = [path for path in paths if is_absent(host, PurePosixPath(path))]
                yield Spec(directory / name, found, tuple(gone))
