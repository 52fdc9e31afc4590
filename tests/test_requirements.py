"""The image of a root DaemonSet is made of Python packages whose sums are known, for both architectures."""

import json
import re
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from tests.support.locked import ROWS
from tests.support.site import PROJECT
from tests.support.version import VERSION

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


# The bill of materials, which `make sbom` writes.
BILL = json.loads((PROJECT / "images/sbom.cdx.json").read_text())


def _sums_of(component: dict[str, list[dict[str, list[dict[str, str]]]]]) -> set[str]:
    return {each["content"] for place in component["externalReferences"] for each in place["hashes"]}


def test_the_bill_has_every_package_of_the_image_and_no_other() -> None:
    listed = {each["purl"] for each in BILL["components"]}

    assert BILL["bomFormat"] == "CycloneDX"
    assert listed == {f"pkg:pypi/{name}@{version}" for name, version, _ in ROWS}


def test_the_bill_has_the_sums_that_the_image_is_built_with() -> None:
    found = {each["name"]: _sums_of(each) for each in BILL["components"]}

    assert found == {
        name: set(hashes.replace("--hash=sha256:", "").replace("\\", "").split()) for name, _, hashes in ROWS
    }


def test_the_bill_is_of_this_version() -> None:
    program = BILL["metadata"]["component"]

    assert (program["name"], program["version"]) == ("node-toolkit-installer", VERSION)
    assert "timestamp" not in BILL["metadata"], "the same bill twice is the same file"
