"""The version stands in pyproject.toml; whoever repeats it says the same, and `make golden` sees to that."""

import re
from pathlib import Path

import pytest

from tests.support.golden import golden
from tests.support.site import PROJECT
from tests.support.version import VERSION

NUMBER = r"(?<![\d.])\d+\.\d+\.\d+(?![\d.])"
CHART = "deploy/helm/node-toolkit-installer/Chart.yaml"
# File, and what stands right before the number.
REPEATED = (
    ("deploy/kustomize/components/image/kustomization.yaml", "newTag: "),
    (CHART, "\nversion: "),
    (CHART, "appVersion: "),
    ("README.md", "It is young: version "),
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


def test_the_changelog_begins_with_this_version_below_what_comes_next() -> None:
    first = re.search(r"^## (?!Unreleased$)(.*)$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert first is not None
    assert re.fullmatch(rf"{re.escape(VERSION)}, (unreleased|\d{{4}}-\d\d-\d\d)", first[1])


def test_no_other_file_of_the_deployment_repeats_it() -> None:
    named = {file for file, _ in REPEATED}
    files = [file for file in (PROJECT / "deploy").rglob("*") if file.is_file()]

    found = {str(file.relative_to(PROJECT)) for file in files if VERSION in _without_samples(file)}
    assert found <= named


def _without_samples(file: Path) -> str:
    return re.sub(r"toolkit_installer_info\{.*", "", file.read_text())
