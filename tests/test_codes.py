"""Each error has a stable code: one list, each used, each in the docs; it stands in logs and in plan --json."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from installer.errors import AGAIN, Code, InstallerError, Option, Remedy, UndoIncompleteError

ROOT = Path(__file__).parent.parent
CODES = frozenset(get_args(Code))


def test_the_docs_list_each_code_and_no_other() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text()
    section = text.partition("## Codes for alerts\n")[2].partition("\n## ")[0]

    listed = re.findall(r"^- `([a-z-]+)`: .+$", section, re.MULTILINE)

    assert listed == sorted(CODES)


def _said(path: Path) -> Iterator[str]:
    """Yield the codes that a module gives: by ``code=``, ``usual =`` for a class, in a row of a table."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.keyword(
                arg="code", value=ast.Constant(str(code)) | ast.IfExp(body=ast.Constant(str(code)))
            ) | ast.Assign([ast.Name("usual")], ast.Constant(str(code))):
                yield code
            case ast.Tuple([_, _, ast.Constant(str(code))]):  # reason, remedy, code
                yield code
            case _:
                pass


def test_each_code_is_used() -> None:
    said = {code for path in (ROOT / "installer").rglob("*.py") for code in _said(path)}

    assert sorted(CODES - said) == []


def test_an_undo_that_stays_incomplete_keeps_the_code_of_its_reason() -> None:
    reason = InstallerError("x", remedy="y", code="toolkit-needed")

    assert UndoIncompleteError.because(reason).code == "toolkit-needed"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("correct it, then run again", "correct it, then run toolkit-installer uninstall again"),
        (
            Remedy("give ", Option("timeout", "60"), ", then run again"),
            "give --timeout 60, then run toolkit-installer uninstall again",
        ),
        (Remedy("give ", Option("timeout", "60")), "give --timeout 60"),
    ],
    ids=["text", "with an option", "no act after it"],
)
def test_an_undo_that_stays_incomplete_names_the_verb_that_continues_it(before: str, after: str) -> None:
    # Of a run that was stopped, the reader of "run again" would start another run, which installs.
    assert UndoIncompleteError.because(InstallerError("x", remedy=before)).remedy == after


def test_what_is_no_undo_is_continued_by_the_same_verb() -> None:
    reason = InstallerError("x", remedy="correct it, then run again")

    assert UndoIncompleteError.because(reason, again=AGAIN).remedy == reason.remedy
