"""The image of a root DaemonSet is made of Python packages whose sums are known, for both architectures."""

import json
import re
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from tests.support.entry import CHART_VERSION, DEVELOPMENT, RELEASE, VERSION
from tests.support.golden import golden
from tests.support.site import PROJECT

# What requirements.txt insists on: name, version and sums of each package that the image gets.
ROWS: list[tuple[str, str, str]] = re.findall(
    r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
    (PROJECT / "requirements.txt").read_text(),
    re.MULTILINE,
)
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
    assert LOCKED.items() - pinned.items() == {("flit-core", LOCKED["flit-core"])}


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


def test_the_bill_has_every_package_of_the_image_with_its_sums_and_no_other() -> None:
    program = BILL["metadata"]["component"]
    listed, found = {each["purl"] for each in BILL["components"]}, dict[str, set[str]]()
    for each in BILL["components"]:
        hashes = [sums for place in each["externalReferences"] for sums in place["hashes"]]
        found[each["name"]] = {sums["content"] for sums in hashes}

    assert BILL["bomFormat"] == "CycloneDX"
    assert (program["name"], program["version"]) == ("node-toolkit-installer", VERSION)
    assert "timestamp" not in BILL["metadata"], "the same bill twice is the same file"
    assert listed == {f"pkg:pypi/{name}@{version}" for name, version, _ in ROWS}
    assert found == {
        name: set(hashes.replace("--hash=sha256:", "").replace("\\", "").split()) for name, _, hashes in ROWS
    }


# The version: whoever repeats it says the same, and `make golden` sees to that.
NUMBER = r"(?<![\d.])\d+\.\d+\.\d+(?:[.-]dev\d+)?(?![\d.])"
CHART = "deploy/helm/node-toolkit-installer/Chart.yaml"
# File, and what stands right before the number.
REPEATED = (
    ("deploy/kustomize/components/image/kustomization.yaml", "newTag: "),
    (CHART, "appVersion: "),
    ("README.md", "**It is a beta** (version "),
    ("README.md", 'version: "'),
    ("README.md", "newTag: "),
    ("README.md", "node-toolkit-installer:"),
    ("docs/gpu-operator.md", 'version: "'),
    ("docs/deploy.md", "node-toolkit-installer:"),
    ("docs/host.md", "node-toolkit-installer:"),
)


@pytest.mark.parametrize(("file", "before"), REPEATED)
def test_a_repeated_version_is_that_of_the_project(file: str, before: str) -> None:
    path = PROJECT / file
    text = re.sub(re.escape(before) + NUMBER, before + VERSION, path.read_text())

    assert before + VERSION in text, "nothing of the kind is there any more"
    assert golden(path, text) == text


def test_the_version_of_the_chart_is_that_of_the_project_as_helm_spells_it() -> None:
    path, before = PROJECT / CHART, "\nversion: "
    text = re.sub(re.escape(before) + NUMBER, before + CHART_VERSION, path.read_text())

    assert before + CHART_VERSION in text, "nothing of the kind is there any more"
    assert golden(path, text) == text


def test_the_changelog_begins_with_unreleased_or_with_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", each) for each in headings]

    if DEVELOPMENT:
        assert headings[0] == "[Unreleased]"
        del released[0]
    numbers = [[*map(int, each[1].split("."))] for each in released if each]
    assert len(numbers) == len(released), "a version has a number and the day of its release"
    assert numbers == sorted(numbers, reverse=True), "the newest is first"
    if DEVELOPMENT:
        assert [*map(int, RELEASE.split("."))] not in numbers
    else:
        assert headings[0].startswith(f"[{VERSION}] - ")
