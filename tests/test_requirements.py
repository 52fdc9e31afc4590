"""The image of a root DaemonSet is made of Python packages whose sums are known, for both architectures."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.locked import ROWS

PROJECT = Path(__file__).parent.parent
LOCKED = {name: version for name, version, _ in ROWS}


def _closure(names: list[str]) -> set[str]:
    """Return the packages that ``names`` need, as they are installed here."""
    found: set[str] = set()
    while names:
        wanted = Requirement(names.pop())
        name = wanted.name.lower().replace("_", "-")
        if name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found.add(name)
            names += requires(name) or ()
    return found


def test_all_that_runs_in_the_image_is_locked_in_the_versions_that_are_tested() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    build = project["build-system"]["requires"]
    pinned = dict(
        line.lower().replace("_", "-").split("==")
        for line in (PROJECT / "constraints.txt").read_text().split()
    )

    assert LOCKED.keys() == _closure(list(project["project"]["dependencies"])) | {"flit-core"}
    assert [f"flit_core=={LOCKED['flit-core']}"] == build
    assert {name: pinned[name] for name in LOCKED if name != "flit-core"} == {
        name: version for name, version in LOCKED.items() if name != "flit-core"
    }


def test_what_is_compiled_has_a_sum_for_each_python_and_architecture() -> None:
    (sums,) = [len(hashes.split("--hash")) - 1 for name, _, hashes in ROWS if name == "charset-normalizer"]

    assert sums == 6
    assert len((PROJECT / "requirements.txt").read_text().splitlines()) == 1 + len(ROWS) + sum(
        hashes.count("--hash") for _, _, hashes in ROWS
    )


@pytest.mark.parametrize("name", ["Dockerfile.ubuntu", "Dockerfile.ubi8"])
def test_an_image_installs_nothing_without_a_sum(name: str) -> None:
    text = (PROJECT / name).read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install ([^&]*)", text)

    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "--no-index" in installs[1]
    assert "--no-deps" in installs[1]
