"""What the threat model claims is held by tests, and those are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
DOCUMENTS = ("docs/security.md", "docs/security-host.md")
NAMED = [
    (document, found)
    for document in DOCUMENTS
    for found in dict.fromkeys(re.findall(r"`(tests/[\w/.:-]+)`", (PROJECT / document).read_text()))
]


@cache
def _functions(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _is_there(named: str) -> bool:
    file, _, test = named.partition("::")
    functions = _functions(PROJECT / file) if (PROJECT / file).is_file() else frozenset()
    return any(name.startswith("test_") and test in {name, ""} for name in functions)


def test_a_test_that_is_named_is_there() -> None:
    assert len(NAMED) > 50
    assert [each for each in NAMED if not _is_there(each[1])] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_claim_names_a_test(document: str) -> None:
    text = (PROJECT / document).read_text()
    tables = re.findall(r"^\|[^\n]*\| test \|\n\|[-|]+\|\n((?:\|[^\n]*\n)+)", text, re.MULTILINE)

    claims = [row for table in tables for row in table.splitlines()]
    assert len(claims) > 5
    assert [row for row in claims if "`tests/" not in row.rsplit(" | ", 1)[1]] == []


def test_the_readme_leads_there_and_it_says_who_is_root() -> None:
    assert "docs/security.md" in (PROJECT / "README.md").read_text()
    said = (PROJECT / "docs/security.md").read_text()
    assert "Who may create pods in the namespace of the DaemonSet is root on every node" in said
