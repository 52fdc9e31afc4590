"""What is frozen stays as it is, unless a commit of its own changes it; and what of all tests CI runs for a change."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.acceptance import LIST, flaws, history, write
from tests.conftest import ONE_IN, by_night
from tests.touched import EVERYTHING, PROJECT, changes, table, touched

HELPER, TEXT, INSIDE = "tests/support/helper.py", "tests/golden/text", "tests/test_inside.py"
FILES = {
    "tests/test_a.py": "from tests.support import helper\n",
    HELPER: "ONE = 1\n",
    "tests/conftest.py": "",
    TEXT: "text\n",
    INSIDE: "from installer.cli import flags\n",
    "installer/cli/flags.py": "",
    "CHANGELOG.md": "- `--old` is gone.\n",
    LIST: "# what is frozen\n",
}
PROGRAM = "installer/cli/flags.py"
Act = Callable[[Path], object]


def git(project: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(project), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(project: Path, *acts: Act) -> str:
    for act in acts:
        act(project)
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message=a commit")
    return git(project, "rev-parse", "HEAD")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a repository with a list in which is frozen what can be."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    write(tmp_path, ["tests/test_a.py", "tests/golden"])
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    return tmp_path


def adds(name: str, text: str = "# more\n") -> Act:
    def add(project: Path) -> None:
        with (project / name).open("a") as file:
            file.write(text)

    return add


def frozen_anew(project: Path) -> None:
    write(project, [])


def off_the_list(project: Path) -> None:
    text = (project / LIST).read_text()
    (project / LIST).write_text("".join(line for line in text.splitlines(True) if "golden" not in line))


def retired(words: str) -> Act:
    return adds(LIST, f"# retired: {TEXT}: {words}\n")


def test_a_list_has_all_that_its_tests_import_and_holds_at_first(project: Path) -> None:
    listed = [line.split()[1] for line in (project / LIST).read_text().splitlines()[1:]]

    assert listed == ["tests/conftest.py", TEXT, HELPER, "tests/test_a.py"]
    assert [*flaws(project), *history(project)] == []


def test_what_does_not_hold_is_told(project: Path) -> None:
    for act in (adds(HELPER, "import installer\n"), frozen_anew, adds("tests/conftest.py")):
        act(project)
    adds("tests/test_a.py", "import tests.test_inside\n")(project)
    (project / TEXT).unlink()
    retired("`--new` is gone")(project)

    assert {*flaws(project)} == {
        f"{TEXT} is listed and is not there",
        *(
            f"{path} has changed: commit that with `make acceptance`, and nothing of the program"
            for path in ("tests/conftest.py", "tests/test_a.py")
        ),
        f"{HELPER} knows the program's inside: import installer",
        f"{INSIDE} is imported and not listed",
        f"{TEXT} is retired, and CHANGELOG.md does not say '`--new` is gone'",
    }


WITH_THE_PROGRAM = f"changes the program and {TEXT}"


@pytest.mark.parametrize(
    ("commits", "told"),
    [
        pytest.param(
            [
                [adds(PROGRAM), adds(INSIDE)],
                [adds(TEXT), frozen_anew],
                [off_the_list, retired("`--old` is gone")],
            ],
            "",
            id="others, alone, and retired",
        ),
        pytest.param([[adds(TEXT), adds(PROGRAM)], [frozen_anew]], WITH_THE_PROGRAM, id="its sum later"),
        pytest.param([[adds(TEXT)], [adds(PROGRAM), frozen_anew]], WITH_THE_PROGRAM, id="its sum alone"),
        pytest.param(
            [[off_the_list], [adds(TEXT), adds(PROGRAM)]],
            f"takes {TEXT} off the list without retiring it",
            id="off the list first",
        ),
    ],
)
def test_a_commit_that_changes_what_is_frozen_changes_nothing_of_the_program(
    project: Path, commits: list[list[Act]], told: str
) -> None:
    for acts in commits:
        commit(project, *acts)

    assert list(flaws(project)) == []
    said = "\n".join(history(project))
    assert told in said
    assert bool(told) == bool(said)


def test_a_merge_may_bring_both_and_where_no_history_is_that_is_said(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    git(project, "checkout", "--quiet", "-b", "side")
    commit(project, adds(PROGRAM))
    git(project, "checkout", "--quiet", "main")
    commit(project, adds(TEXT), frozen_anew)
    git(project, "merge", "--quiet", "--no-edit", "side")
    shallow = tmp_path_factory.mktemp("shallow")
    git(project, "clone", "--quiet", "--depth=1", f"file://{project}", str(shallow))

    assert [*flaws(project), *history(project), *flaws(shallow)] == []
    with pytest.raises(RuntimeError, match="not the whole of a clone"):
        list(history(shallow))


def test_a_change_is_what_came_since_a_commit_or_since_main_was_left(project: Path) -> None:
    first = git(project, "rev-parse", "HEAD")
    second = commit(project, adds("second"))

    assert changes(project, "") is None, "a clone without a main of others"
    assert changes(project, first) == ["second"]
    assert changes(project, "0" * 40) is None, "the push that made the branch"
    git(project, "update-ref", "refs/remotes/origin/main", second)
    assert changes(project, "") is None, "main itself"
    commit(project, adds("third"))
    assert changes(project, "") == ["third"]


def test_each_path_of_both_tables_is_there() -> None:
    paths = {*ONE_IN, *(path for row, tests in table().items() for path in (row, *tests))}

    assert [path for path in sorted(paths) if not (PROJECT / path).exists()] == []


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        pytest.param(["docs/host.md", "tests/test_gone.py"], [], id="documents and what is gone"),
        pytest.param(["deploy/base/pod.yaml"], ["tests/deploy", "tests/engines/node"], id="a folder"),
        pytest.param(
            ["installer/engines/k0s.py"], ["tests/crash", "tests/engines/test_k0s.py"], id="the longest path"
        ),
        pytest.param(["tests/crash/test_kills.py"], ["tests/crash/test_kills.py"], id="a test itself"),
        pytest.param(["installer/host/files.py", "docs/nri.md"], EVERYTHING, id="what all use"),
        pytest.param(["tests/engines/nodes.py"], EVERYTHING, id="a helper of tests"),
    ],
)
def test_a_change_touches(changed: list[str], tests: list[str]) -> None:
    assert touched(changed) == tests


@pytest.mark.parametrize(("cases", "by_day"), [(1, 1), (16, 1), (80, 5)])
def test_by_day_a_law_of_crashes_or_engines_is_held_by_one_case_in_sixteen(cases: int, by_day: int) -> None:
    for room in ("crash", "engines"):
        names = [f"tests/{room}/test_a.py::test_law[{number}]" for number in range(cases)]

        assert len({*names} - by_night([*names, "tests/host/test_a.py::test_law[0]"])) == by_day


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
