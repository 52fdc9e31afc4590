"""A node of each engine for the tests of NVIDIA's command line."""

from pathlib import Path

import pytest

from tests.compat.nvidia import Nvidia


@pytest.fixture
def docker(tmp_path: Path) -> Nvidia:
    return Nvidia(tmp_path, "docker")


@pytest.fixture
def containerd(tmp_path: Path) -> Nvidia:
    return Nvidia(tmp_path, "containerd")


@pytest.fixture
def crio(tmp_path: Path) -> Nvidia:
    return Nvidia(tmp_path, "crio")
