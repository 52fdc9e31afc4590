"""Which containers a sweep is made for."""

from pathlib import PurePosixPath

import pytest

from installer.decide.facts import Container
from installer.decide.verify import MARK
from installer.leftovers import any_among

ID = "2236428982b3" + "0" * 52


@pytest.mark.parametrize(
    ("name", "swept"),
    [(f"{MARK}-1a2b3c4d", True), (ID[:12], True), ("-/train", False)],
    ids=["of a verify", "a dockerd that was too slow told no name", "somebody's"],
)
def test_a_sweep_is_made_where_a_container_is_or_may_be_of_a_verify(name: str, *, swept: bool) -> None:
    running = Container(
        "docker", ID, name, PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    )

    assert any_among([running], []) is swept
