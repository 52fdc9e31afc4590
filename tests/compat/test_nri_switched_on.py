"""The GPU Operator switches NRI on where a pod without it was killed: its handlers are in the engine's config."""

from pathlib import Path

import pytest

from tests.compat.nvidia import TOOLKIT, V2, Nvidia

NRI = {"ENABLE_NRI_PLUGIN": "true", "NRI_NAMESPACE": "gpu-operator"}
LOW_LEVEL = "/opt/site/bin/runc-of-the-site"
RUNC = f"""version = 2
[{V2}.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [{V2}.runtimes.runc.options]
    BinaryName = "{LOW_LEVEL}"
"""
# As NVIDIA's tool leaves it (engine-facts.md#nvidia-runtimes).
THEIRS = f"""version = 2
[{V2}.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [{V2}.runtimes.nvidia.options]
    BinaryName = "{TOOLKIT}/nvidia-container-runtime"
"""


@pytest.fixture
def containerd(tmp_path: Path) -> Nvidia:
    return Nvidia(tmp_path, "containerd")


def low_level(node: Nvidia) -> list[str]:
    return list(node.toolkit_config()["nvidia-container-runtime"]["runtimes"])


def left_by_nvidia(node: Nvidia) -> None:
    """Leave what a killed pod of NVIDIA's leaves."""
    toolkit = node.root / TOOLKIT[1:]
    config = toolkit / ".config/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[nvidia-container-runtime]\nruntimes = ["{LOW_LEVEL}"]\n')
    for name in ("nvidia-container-runtime", "nvidia-ctk"):
        (toolkit / name).write_text("#!/bin/sh\n")
        (toolkit / name).chmod(0o755)
    node.config.write_text(THEIRS)


def test_the_low_level_runtimes_of_the_killed_pod_stay(containerd: Nvidia) -> None:
    containerd.config.write_text(RUNC)
    assert containerd.install() == 0
    before = low_level(containerd)

    assert [containerd.install(**NRI), containerd.install(**NRI)] == [0, 0]

    assert before[0] == LOW_LEVEL
    assert low_level(containerd) == before


def test_the_low_level_runtimes_of_nvidias_killed_pod_stay(containerd: Nvidia) -> None:
    left_by_nvidia(containerd)

    assert [containerd.install(**NRI), containerd.install(**NRI)] == [0, 0]

    assert low_level(containerd) == [LOW_LEVEL]


def test_a_node_where_nobody_was_before_gets_the_usual_low_level_runtimes(containerd: Nvidia) -> None:
    assert containerd.install(**NRI) == 0

    assert low_level(containerd) == ["runc", "crun"]


def test_nvidias_directory_comes_back_for_the_handlers_that_it_has_left(containerd: Nvidia) -> None:
    left_by_nvidia(containerd)
    before = containerd.tree()
    assert containerd.install(**NRI) == 0
    assert (containerd.root / TOOLKIT[1:]).is_symlink()

    assert containerd.uninstall() == 0

    assert containerd.tree() == before


def test_a_program_that_nvidias_directory_does_not_have_keeps_ours(
    containerd: Nvidia, capfd: pytest.CaptureFixture[str]
) -> None:
    left_by_nvidia(containerd)
    containerd.config.write_text(THEIRS.replace("container-runtime", "container-runtime.cdi"))
    assert containerd.install(**NRI) == 0

    assert containerd.uninstall() == 4
    assert "nvidia-container-runtime.cdi" in capfd.readouterr().err

    assert (containerd.root / TOOLKIT[1:] / "nvidia-container-runtime.cdi").exists()
