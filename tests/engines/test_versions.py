"""docs/versions.md beside the engines that Debian carries: at night, for the archive moves on by itself."""

import re

import pytest

from tests.documents import version_rows
from tests.engines.versions import EngineSet


@pytest.mark.night
@pytest.mark.parametrize("title", ["containerd", "Docker"])
def test_an_engine_that_is_called_run_is_one_that_the_tests_boot(
    title: str, engines_today: list[EngineSet]
) -> None:
    booted = {row.containerd for row in engines_today}
    if title == "Docker":
        booted = {row.docker for row in engines_today if row.docker}
    run, _, _ = version_rows()[title]

    assert {*re.findall(r"\d+\.\d+\.\d+", run)} == booted
