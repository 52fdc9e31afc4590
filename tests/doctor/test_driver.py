"""What is read of the driver where files are missing, spoilt or something else."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.host.files import Host
from installer.report.doctor.model import Driver
from installer.report.doctor.read import read_driver, read_specifications
from tests.doctor import golden

ROOT = PurePosixPath("/")


def read(root: Path) -> Driver:
    return read_driver(Host.under(PurePosixPath(root)), ROOT)


def put(path: str, text: str) -> Callable[[Path], Any]:
    return lambda root: golden.put(root, path, text)


def directory(path: str) -> Callable[[Path], Any]:
    def make(root: Path) -> None:
        (root / path.lstrip("/")).unlink()
        (root / path.lstrip("/")).mkdir()

    return make


@pytest.mark.parametrize(
    ("act", "name", "value"),
    [
        (lambda _: None, "version", "550.54.15"),
        (put("/sys/module/nvidia/version", ""), "version", ""),
        (put("/sys/module/nvidia/version", "none"), "version", ""),
        (directory("/sys/module/nvidia/version"), "version", ""),
        (lambda _: None, "secure_boot", False),
        (put(golden.SECURE_BOOT, "\x06\0\0\0\x01"), "secure_boot", True),
        (put(golden.SECURE_BOOT, ""), "secure_boot", False),
        (directory(golden.SECURE_BOOT), "secure_boot", False),
        (lambda _: None, "mig_minors", (12, 13)),
        (put(f"{golden.CAPABILITIES}/access", "DeviceFileMode: 292\n"), "mig_minors", (13,)),
        (directory(f"{golden.CAPABILITIES}/access"), "mig_minors", (13,)),
        (lambda _: None, "majors", {"mem": 1, "nvidia": 195, "nvidia-uvm": 508}),
        (put("/proc/devices", "Block devices:\n 8 sd\n"), "majors", {}),
        (put("/proc/devices", "  7 a b\nx y\n\u00b2 z\n"), "majors", {"a b": 7}),
        (lambda _: None, "char_links", {(195, 0), (195, 255), (508, 0), (508, 1)}),
        (lambda _: None, "modules", {"nvidia", "nvidia_uvm"}),
        (put("/sys/module/nouveau/refcnt", "1"), "modules", {"nvidia", "nvidia_uvm", "nouveau"}),
        (lambda _: None, "persistenced", "absent"),
    ],
)
def test_what_is_read(tmp_path: Path, act: Callable[[Path], Any], name: str, value: object) -> None:
    golden.lay(tmp_path)
    act(tmp_path)

    assert getattr(read(tmp_path), name) == value


@pytest.mark.parametrize("link", ["195", "a:1", "1:b", ":", "195:\u00b2", "\u00b2:1"])
def test_a_name_that_is_no_number_is_no_link_of_a_device(tmp_path: Path, link: str) -> None:
    golden.link(golden.lay(tmp_path), f"/dev/char/{link}", "../x")

    assert len(read(tmp_path).char_links) == 4


@pytest.mark.parametrize(
    ("vendor", "kind", "count"),
    [("0x10de", "0x030200", 3), ("0x8086", "0x030200", 2), ("0x10de", "none", 2), ("", "", 2)],
)
def test_a_function_is_one_of_the_vendor_with_a_class(
    tmp_path: Path, vendor: str, kind: str, count: int
) -> None:
    golden.lay(tmp_path)
    golden.put(tmp_path, "/sys/bus/pci/devices/0000:aa:00.0/vendor", f"{vendor}\n")
    golden.put(tmp_path, "/sys/bus/pci/devices/0000:aa:00.0/class", f"{kind}\n")

    found = read(tmp_path)
    assert len(found.gpus) + found.switches == count


def test_specifications_are_files_of_their_suffix_and_say_what_is_gone(tmp_path: Path) -> None:
    golden.lay(tmp_path)
    (tmp_path / "usr/bin/nvidia-smi").unlink()
    golden.put(tmp_path, "/etc/cdi/other.txt", "hostPath: /gone")
    golden.put(tmp_path, "/var/run/cdi/more.yml", "hostPath: /usr/sbin/runc")

    found = {
        str(spec.path): [*map(str, spec.gone)]
        for spec in read_specifications(Host.under(PurePosixPath(tmp_path)))
    }

    assert found == {golden.SPEC: ["/usr/bin/nvidia-smi"], "/var/run/cdi/more.yml": []}
