"""What is frozen stays as it is, unless a commit of its own changes it and nothing of the program."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance import LIST, flaws, history, write

FILES = {
    "tests/test_a.py": "from tests.support import helper\n",
    "tests/support/helper.py": "ONE = 1\n",
    "tests/conftest.py": "",
    "tests/golden/text": "text\n",
    "tests/test_inside.py": "from installer.cli import flags\n",
    "installer/cli/flags.py": "",
    "CHANGELOG.md": "- `--old` is gone.\n",
    LIST: "# what is frozen\n",
}
Act = Callable[[Path], object]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a repository with a list in which is frozen what can be."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    write(tmp_path, ["tests/test_a.py", "tests/golden"])
    _git(tmp_path, "init", "--quiet", "--initial-branch=main")
    _commit(tmp_path)
    return tmp_path


def _git(project: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(project), *who, *words], check=True, capture_output=True)


def _commit(project: Path) -> None:
    _git(project, "add", "--all")
    _git(project, "commit", "--quiet", "--message=a commit")


def _adds(name: str, text: str = "# more\n") -> Act:
    def add(project: Path) -> None:
        with (project / name).open("a") as file:
            file.write(text)

    return add


def _frozen_anew(project: Path) -> None:
    write(project, [])


def _off_the_list(project: Path) -> None:
    text = (project / LIST).read_text()
    (project / LIST).write_text("".join(line for line in text.splitlines(True) if "golden" not in line))


def _without(name: str) -> Act:
    return lambda project: (project / name).unlink()


def test_a_list_has_all_that_its_tests_import_and_holds_at_first(project: Path) -> None:
    listed = [line.split()[1] for line in (project / LIST).read_text().splitlines()[1:]]

    assert listed == ["tests/conftest.py", "tests/golden/text", "tests/support/helper.py", "tests/test_a.py"]
    assert [*flaws(project), *history(project)] == []


@pytest.mark.parametrize(
    ("acts", "told"),
    [
        pytest.param(
            [_adds("tests/support/helper.py")], "tests/support/helper.py has changed", id="a helper"
        ),
        pytest.param([_adds("tests/golden/text")], "tests/golden/text has changed", id="a text"),
        pytest.param(
            [_without("tests/golden/text")], "tests/golden/text is listed and is not there", id="gone"
        ),
        pytest.param(
            [_adds("tests/support/helper.py", "import installer\n"), _frozen_anew],
            "tests/support/helper.py knows the program's inside: import installer",
            id="an import of the program",
        ),
        pytest.param(
            [_adds("tests/test_a.py", "import tests.test_inside\n")],
            "tests/test_inside.py is imported and not listed",
            id="an import that is not listed",
        ),
        pytest.param(
            [_off_the_list, _adds(LIST, "# retired: tests/golden/text: `--new` is gone\n")],
            "tests/golden/text is retired, and CHANGELOG.md does not say '`--new` is gone'",
            id="retired without a decision",
        ),
    ],
)
def test_what_does_not_hold_is_told(project: Path, acts: list[Act], told: str) -> None:
    for act in acts:
        act(project)

    assert told in "\n".join(flaws(project))


@pytest.mark.parametrize(
    ("commits", "told"),
    [
        pytest.param(
            [[_adds("installer/cli/flags.py"), _adds("tests/test_inside.py")]], "", id="others may change"
        ),
        pytest.param([[_adds("tests/golden/text"), _frozen_anew]], "", id="in a commit of its own"),
        pytest.param(
            [[_adds("tests/golden/text"), _adds("installer/cli/flags.py"), _frozen_anew]],
            "changes the program and tests/golden/text",
            id="with the program",
        ),
        pytest.param(
            [[_adds("tests/golden/text"), _adds("installer/cli/flags.py")], [_frozen_anew]],
            "changes the program and tests/golden/text",
            id="with the program, its sum later",
        ),
        pytest.param(
            [[_adds("tests/golden/text")], [_adds("installer/cli/flags.py"), _frozen_anew]],
            "changes the program and tests/golden/text",
            id="its sum with the program",
        ),
        pytest.param(
            [[_off_the_list], [_adds("tests/golden/text"), _adds("installer/cli/flags.py")]],
            "takes tests/golden/text off the list without retiring it",
            id="off the list first",
        ),
        pytest.param(
            [[_off_the_list, _adds(LIST, "# retired: tests/golden/text: `--old` is gone\n")]],
            "",
            id="retired",
        ),
    ],
)
def test_a_commit_that_changes_what_is_frozen_changes_nothing_of_the_program(
    project: Path, commits: list[list[Act]], told: str
) -> None:
    for acts in commits:
        for act in acts:
            act(project)
        _commit(project)

    assert list(flaws(project)) == []
    said = "\n".join(history(project))
    assert told in said
    assert bool(told) == bool(said)


def test_a_merge_may_bring_both(project: Path) -> None:
    _git(project, "checkout", "--quiet", "-b", "side")
    _adds("installer/cli/flags.py")(project)
    _commit(project)
    _git(project, "checkout", "--quiet", "main")
    _adds("tests/golden/text")(project)
    _frozen_anew(project)
    _commit(project)
    _git(project, "merge", "--quiet", "--no-edit", "side")

    assert [*flaws(project), *history(project)] == []


def test_where_no_history_is_that_is_said(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shallow = tmp_path_factory.mktemp("shallow")
    _git(project, "commit", "--quiet", "--allow-empty", "--message=another")
    _git(project, "clone", "--quiet", "--depth=1", f"file://{project}", str(shallow))

    with pytest.raises(RuntimeError, match="not the whole of a clone"):
        list(history(shallow))
    assert list(flaws(shallow)) == []
