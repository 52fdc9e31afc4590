"""docs/versions.md names what the tests use: no version is called tested that is not."""

import re
import tomllib

import pytest

from tests.deploy.rendered import SCHEMAS
from tests.documents import PROJECT
from tests.documents import version_rows as rows
from tests.fresh.__main__ import COMMANDS

GOLDEN = PROJECT / "tests/golden"
# k0s and MicroK8s bring a containerd, whose version is the one in their cases.
OF_CONTAINERD = ("containerd", "k0s", "microk8s")
DEBIANS = {"bookworm": "12", "trixie": "13"}


def _edited(*engines: str) -> set[str]:
    """Return the versions, such as ``2.3``, that golden cases of ``engines`` have."""
    found = set()
    for engine in engines:
        for path in (GOLDEN / engine).glob("*/case.toml"):
            version = tomllib.loads(path.read_text()).get("engine_version")
            if version:
                found.add(_series(version))
    return found


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


@pytest.mark.parametrize(
    ("title", "engines"), [("containerd", OF_CONTAINERD), ("Docker", ("docker",)), ("CRI-O", ("crio",))]
)
def test_a_version_that_is_edited_but_not_run_is_one_of_the_golden_cases(
    title: str, engines: tuple[str, ...]
) -> None:
    run, edited, untried = rows()[title]
    ran = {_series(version) for version in re.findall(r"\d+\.\d+\.\d+", run)}
    said = {*re.findall(r"\d+\.\d+", edited)}

    assert ran
    assert said == _edited(*engines) - ran
    assert not (ran | said) & {*re.findall(r"\d+\.\d+", untried)}


def test_the_manifests_are_validated_against_the_kubernetes_that_is_named() -> None:
    _, edited, _ = rows()["Kubernetes"]

    assert tuple(re.findall(r"1\.\d+", edited)) == SCHEMAS


def test_the_toolkit_that_was_run_is_that_of_the_images() -> None:
    run, _, _ = rows()["NVIDIA's container toolkit"]
    pinned = re.findall(
        r"^TOOLKIT_VERSION=([\d.]+)-", (PROJECT / "images/versions.env").read_text(), re.MULTILINE
    )

    assert re.findall(r"\d+\.\d+\.\d+", run) == pinned


def test_the_debians_are_those_of_make_fresh() -> None:
    run, _, _ = rows()["Debian as a host"]

    assert re.findall(r"(\d+) \(", run) == [DEBIANS[suite] for suite in COMMANDS]
