from pathlib import Path

import pytest

from tests.deploy.rendered import Layer


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    """Return a layer over the manifests, as an operator writes it."""
    return Layer(tmp_path)
