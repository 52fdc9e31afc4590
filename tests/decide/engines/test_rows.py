"""What the rows of engines say by functions, for each version that matters."""

import pytest

from installer.engines import ENGINES

NEVER, ALWAYS = {"docker"}, {"crio", "k3s", "rke2"}


@pytest.mark.parametrize(
    ("version", "new"),
    [(None, True), ((1, 6, 20), False), ((1, 7, 29), False), ((2, 0), True), ((2, 1, 9), True)],
)
def test_which_engines_cannot_use_a_container_whose_runtime_is_gone(
    version: tuple[int, ...] | None, *, new: bool
) -> None:
    need = {name for name, spec in ENGINES.items() if spec.needs_handler(version)}

    assert need == (ENGINES.keys() - NEVER if new else ALWAYS)
