"""Hosts whose root is an image: a containerd whose root file nobody can write, and that imports a directory."""

from collections.abc import Iterator

import pytest

from tests.engines.configs import VERSION_3
from tests.engines.conftest import Boot
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import served, snapshot
from tests.engines.versions import EngineSet

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


@pytest.mark.sampled(16)
@pytest.mark.parametrize("asked", [(), ("--drop-in-config", DROP_IN)], ids=["by itself", "asked for"])
def test_a_drop_in_is_all_that_a_read_only_root_file_takes(flatcar: Node, asked: tuple[str, ...]) -> None:
    files, before = snapshot(flatcar), served(flatcar)
    install = ("install", *SOURCE, "--runtime", "containerd", *asked)

    flatcar.installer(*install, check=True)

    assert served(flatcar)[0] == {"runc"} | OURS
    assert snapshot(flatcar).keys() >= {DROP_IN}
    assert "nothing changed" in flatcar.installer(*install, check=True).stderr
    flatcar.installer("uninstall", check=True)
    assert (snapshot(flatcar), served(flatcar)) == (files, before)
