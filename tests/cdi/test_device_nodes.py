from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.cdi.generate import absent_node, change_device_nodes, held_node
from installer.host.files import Host
from installer.model.facts import DeviceNode
from installer.model.steps import RemoveDeviceNodes

NODE = PurePosixPath("/dev/nvidiactl")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    return Host.under(PurePosixPath(tmp_path))


def _known(host: Host) -> DeviceNode:
    node = held_node(host, absent_node(NODE))
    assert node is not None
    return node


def test_a_node_that_we_made_goes(host: Host) -> None:
    change_device_nodes(host, RemoveDeviceNodes((_known(host),)))

    assert held_node(host, absent_node(NODE)) is None


def test_a_node_that_the_driver_has_made_anew_stays(host: Host, tmp_path: Path) -> None:
    ours = _known(host)
    (tmp_path / "dev/other").touch()
    (tmp_path / "dev/other").rename(tmp_path / "dev/nvidiactl")

    change_device_nodes(host, RemoveDeviceNodes((ours,)))

    assert host.exists(NODE)


def test_a_node_of_another_boot_stays(host: Host) -> None:
    ours = _known(host)

    change_device_nodes(
        host, RemoveDeviceNodes((replace(ours, born=f"another-boot {ours.born.split()[1]}"),))
    )

    assert host.exists(NODE)


def test_a_node_that_is_gone_is_no_trouble(host: Host, tmp_path: Path) -> None:
    ours = _known(host)
    (tmp_path / "dev/nvidiactl").unlink()

    change_device_nodes(host, RemoveDeviceNodes((ours,)))
