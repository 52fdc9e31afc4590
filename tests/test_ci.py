"""What CI runs: every part has its turn, and no action can change unseen."""

import re

import yaml

from tests.documents import PROJECT

WORKFLOWS = {path.stem: path.read_text() for path in (PROJECT / ".github/workflows").glob("*.yml")}


def test_a_push_runs_every_part_of_ci_run() -> None:
    made = re.findall(r"^make (\S+)", (PROJECT / ".ci/run").read_text(), re.MULTILINE)
    tested = re.findall(r"^test: (.*?) +##", (PROJECT / "Makefile").read_text(), re.MULTILINE)[0].split()

    jobs = yaml.safe_load(WORKFLOWS["ci"])["jobs"].values()

    parts = [part for job in jobs for part in job["strategy"]["matrix"]["part"]]
    # make test-node makes the image first
    assert {*parts, "image"} == {*made, *tested} - {"test"}


def test_an_action_is_named_by_a_commit_and_its_version() -> None:
    used = [line for text in WORKFLOWS.values() for line in text.splitlines() if "uses:" in line]

    assert [line for line in used if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []
    assert len(used) > 10
