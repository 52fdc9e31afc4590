"""What CI runs of ``make test-all`` beside ``make test``: what a change touches, and everything where that is unknown."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import ONE_IN, by_night
from tests.touched import EVERYTHING, PROJECT, changes, table, touched


def test_each_path_of_both_tables_is_there() -> None:
    paths = {*ONE_IN, *(path for row, tests in table().items() for path in (row, *tests))}

    assert [path for path in sorted(paths) if not (PROJECT / path).exists()] == []


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        pytest.param(["docs/host.md", "README.md"], [], id="documents touch nothing"),
        pytest.param(
            ["deploy/base/pod.yaml"], ["tests/deploy", "tests/engines/node"], id="a folder has its tests"
        ),
        pytest.param(
            ["installer/engines/k0s.py", "docs/nri.md"],
            ["tests/crash", "tests/engines/test_k0s.py"],
            id="the longest path counts",
        ),
        pytest.param(
            ["tests/crash/test_kills.py"], ["tests/crash/test_kills.py"], id="a test touches itself"
        ),
        pytest.param(["tests/test_gone.py"], [], id="a test that is gone touches nothing"),
        pytest.param(
            ["installer/host/files.py", "docs/nri.md"], EVERYTHING, id="what all use touches everything"
        ),
        pytest.param(["tests/engines/nodes.py"], EVERYTHING, id="a helper of tests touches everything"),
    ],
)
def test_a_change_touches(changed: list[str], tests: list[str]) -> None:
    assert touched(changed) == tests


@pytest.mark.parametrize(("cases", "by_day"), [(1, 1), (2, 1), (16, 1), (80, 5)])
def test_by_day_a_law_of_crashes_or_engines_is_held_by_one_case_in_sixteen(cases: int, by_day: int) -> None:
    names = [f"tests/{room}/test_a.py::test_law[{n}]" for room in ("crash", "engines") for n in range(cases)]

    left = by_night([*names, "tests/host/test_a.py::test_law[0]"])

    assert [
        len([name for name in names if room in name and name not in left]) for room in ("crash", "engines")
    ] == [
        by_day,
        by_day,
    ]
    assert left <= {*names}


def test_a_change_is_what_came_since_a_commit_or_since_main_was_left(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        done = subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(name: str) -> str:
        (tmp_path / name).touch()
        git("add", name)
        git("commit", "--quiet", "--message", name)
        return git("rev-parse", "HEAD")

    git("init", "--quiet", "--initial-branch=main")
    first, second = commit("first"), commit("second")

    assert changes(tmp_path, "") is None, "a clone without a main of others"
    assert changes(tmp_path, first) == ["second"]
    assert changes(tmp_path, "0" * 40) is None, "the push that made the branch"
    git("update-ref", "refs/remotes/origin/main", second)
    assert changes(tmp_path, "") is None, "main itself"
    commit("third")
    assert changes(tmp_path, "") == ["third"]


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
