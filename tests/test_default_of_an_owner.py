"""An owner makes a runtime of ours his default: no undo leaves a default that nobody defines."""

import tomllib
from pathlib import Path

from tests.support.site import Site

CONTAINERD = "etc/containerd/config.toml"
PLUGIN = "io.containerd.grpc.v1.cri"
TEXT = f"""\
version = 2
[plugins."{PLUGIN}".containerd]
default_runtime_name = "runc"
[plugins."{PLUGIN}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def test_a_second_undo_after_an_install_keeps_it_as_the_first_did(tmp_path: Path) -> None:
    site = Site(tmp_path)
    path = site.root / CONTAINERD
    path.write_text(TEXT)
    assert site.call("install").returncode == 0
    path.write_text(
        path.read_text().replace('default_runtime_name = "runc"', 'default_runtime_name = "nvidia"')
    )
    assert site.call("uninstall").returncode == 4
    assert site.call("install").returncode == 0

    assert site.call("uninstall").returncode == 4

    containerd = tomllib.loads(path.read_text())["plugins"][PLUGIN]["containerd"]
    assert containerd["default_runtime_name"] in containerd["runtimes"]


def test_an_install_that_changes_nothing_proves_no_config_that_the_next_start_refuses(tmp_path: Path) -> None:
    site = Site(tmp_path)
    path = site.root / CONTAINERD
    path.write_text(TEXT)
    assert site.call("install").returncode == 0
    path.write_text(path.read_text().replace('"runc"', '"gone"', 1))
    before = site.status()
    assert (before.returncode, "its default runtime gone is not defined" in before.stdout) == (1, True)

    assert site.call("install").returncode == 0

    assert site.status().stdout == before.stdout


def test_a_comment_keeps_no_built_in_runtime_that_was_not_named_before_the_install(tmp_path: Path) -> None:
    site = Site(tmp_path)
    path = site.root / CONTAINERD
    runtime = f'[plugins."{PLUGIN}".containerd.runtimes.nvidia'
    options = f'{runtime}.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
    text = f'version = 2\n{runtime}]\nruntime_type = "io.containerd.runc.v2"\n{options}'
    path.write_text(text)
    assert site.call("install").returncode == 0
    path.write_text(path.read_text() + "# mine\n")

    assert site.call("uninstall").returncode == 0

    assert path.read_text() == f"{text}# mine\n"
