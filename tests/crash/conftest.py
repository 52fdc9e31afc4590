"""What is crashed."""

from collections.abc import Iterator

import pytest

from tests.crash.nodes import ENGINES, SCENES, Scene, Ward, ward


@pytest.fixture(params=ENGINES, scope="module")
def engines(request: pytest.FixtureRequest) -> str:
    """Return the name of one engine, or of all of them together."""
    return str(request.param)


@pytest.fixture(scope="module")
def nodes(engines: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """Return nodes of these engines to be crashed."""
    with ward(tmp_path_factory.mktemp("crash") / "ward", engines) as made:
        yield made


@pytest.fixture(params=SCENES.values(), ids=[*SCENES])
def scene(request: pytest.FixtureRequest) -> Scene:
    """Return a verb and the node it meets."""
    found: Scene = request.param
    return found
