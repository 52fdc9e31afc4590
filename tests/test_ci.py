"""What CI runs: every part has its turn, and no action can change unseen."""

import re
from typing import Any

import yaml

from tests.documents import PROJECT

WORKFLOWS = {path.stem: path.read_text() for path in (PROJECT / ".github/workflows").glob("*.yml")}


def test_a_push_runs_every_part_of_ci_run() -> None:
    made = re.findall(r"^make (\S+)", (PROJECT / ".ci/run").read_text(), re.MULTILINE)
    tested = re.findall(r"^test: (.*?) +##", (PROJECT / "Makefile").read_text(), re.MULTILINE)[0].split()

    jobs = yaml.safe_load(WORKFLOWS["ci"])["jobs"].values()

    parts = [part for job in jobs for part in job["strategy"]["matrix"]["part"]]
    # make engines makes the image first
    assert {*parts, "image"} == {*made, *tested} - {"test"}


def test_an_action_is_named_by_a_commit_and_its_version() -> None:
    used = [line for text in WORKFLOWS.values() for line in text.splitlines() if "uses:" in line]

    assert [line for line in used if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []
    assert len(used) > 10


# Written by what a step runs, or by `make pin` before a release.
WRITTEN = {"images/payload.sha256", "digests/*/digest", "sbom.cdx.json"}


def _jobs() -> list[dict[str, Any]]:
    return [job for text in WORKFLOWS.values() for job in yaml.safe_load(text)["jobs"].values()]


def _commands(job: dict[str, Any]) -> str:
    return "\n".join(step["run"] for step in job["steps"] if "run" in step)


def test_a_workflow_names_targets_and_files_that_there_are() -> None:
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    said = "\n".join(map(_commands, _jobs()))
    parts = [part for job in _jobs() for part in job.get("strategy", {}).get("matrix", {}).get("part", [])]
    made = re.findall(r"^\s*make ([a-z-]+)", said, re.MULTILINE)
    paths = re.findall(r"(?<![\w/$:.\"-])(?:[\w*-]+/)*[\w*-]+\.(?:toml|env|json|sha256)\b|images/\w+", said)

    assert made == ["test-all"]
    assert {*parts, *made} <= {*targets}
    assert {"pyproject.toml", "images/versions.env", "images/build"} <= {*paths}
    assert [path for path in paths if path not in WRITTEN and not (PROJECT / path).exists()] == []


def test_a_job_in_a_container_lets_git_read_the_checkout() -> None:
    """The workspace belongs to the runner's user there, and the container's is root."""
    contained = [_commands(job) for job in _jobs() if "container" in job]

    assert len(contained) == 2
    trusts = 'git config --global --add safe.directory "$GITHUB_WORKSPACE"'
    assert [said for said in contained if trusts not in said] == []
