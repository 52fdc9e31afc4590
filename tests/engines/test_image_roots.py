"""Hosts whose root is an image: a containerd whose root file nobody can write, and that imports a directory."""

from collections.abc import Iterator

import pytest

from tests.engines.configs import VERSION_3
from tests.engines.conftest import Boot
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served, snapshot
from tests.engines.versions import EngineSet

SOURCE = ("--toolkit-source", ARTIFACTS)
IMAGE = "/usr/share/containerd"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
UNIT = f"[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config {IMAGE}/config.toml\n"
IMPORTS = "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n"


@pytest.fixture
def flatcar(booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot a node whose containerd is started as Flatcar's, its root file on a file system that is read-only."""
    newest = [row for row in engines_today if not row.docker][-1]
    with booted(newest, start=False) as node:
        node.run(["mkdir", "-p", IMAGE])
        node.run(["mount", "-t", "tmpfs", "image", IMAGE])
        node.write(f"{IMAGE}/config.toml", VERSION_3.replace("version = 3\n", IMPORTS))
        node.run(["mount", "-o", "remount,ro", IMAGE])
        node.write("/etc/systemd/system/containerd.service.d/image.conf", UNIT)
        node.run(["rm", "/etc/containerd/config.toml"])
        node.run(["systemctl", "daemon-reload"])
        node.start_engines()
        yield node


@pytest.mark.parametrize("asked", [(), ("--drop-in-config", DROP_IN)], ids=["by itself", "asked for"])
def test_a_drop_in_is_all_that_a_read_only_root_file_takes(flatcar: Node, asked: tuple[str, ...]) -> None:
    files, before = snapshot(flatcar), served(flatcar)

    flatcar.installer("install", *SOURCE, "--runtime", "containerd", *asked, check=True)

    assert served(flatcar)[0] == {"runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert snapshot(flatcar).keys() >= {DROP_IN}
    again = flatcar.installer("install", *SOURCE, "--runtime", "containerd", *asked, check=True)
    assert "nothing changed" in again.stderr
    flatcar.installer("uninstall", check=True)
    assert (snapshot(flatcar), served(flatcar)) == (files, before)
