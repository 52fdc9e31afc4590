"""What is frozen stays as it is, unless a commit of its own changes it; and CI runs every part."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.acceptance import LIST, flaws, history, write
from tests.conftest import ONE_IN
from tests.touched import PROJECT, table

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


def test_what_does_not_hold_is_told(project: Path) -> None:
    assert [*flaws(project), *history(project)] == []
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
        ([[adds(PROGRAM)], [adds(TEXT), frozen_anew], [off_the_list, retired("`--old` is gone")]], ""),
        ([[adds(TEXT), adds(PROGRAM)], [frozen_anew]], WITH_THE_PROGRAM),
        ([[adds(TEXT)], [adds(PROGRAM), frozen_anew]], WITH_THE_PROGRAM),
        ([[off_the_list], [adds(PROGRAM)]], f"takes {TEXT} off the list without retiring it"),
    ],
    ids=["others, alone, and retired", "its sum later", "its sum alone", "off the list first"],
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


def test_each_path_of_both_tables_is_there() -> None:
    paths = {*ONE_IN, *(path for row, tests in table().items() for path in (row, *tests))}

    assert [path for path in sorted(paths) if not (PROJECT / path).exists()] == []


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
