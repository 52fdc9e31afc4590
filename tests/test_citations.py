"""What code and documents cite is there: facts, tests, and no document outside this repository."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.documents import PROJECT, anchors

FACTS = PROJECT / "docs/engine-facts.md"
SECURITY = (PROJECT / "docs/security.md", PROJECT / "docs/security-host.md")
TEXTS = {".py", ".toml", ".md", ".patch", ".yaml", ".txt", ".sh", ".env", ""}
MADE = {"build", "node_toolkit_installer.egg-info"}
COMPATIBILITY = PROJECT / "tests/compat/differences.toml"
_CITED = re.compile(r"\b([\w-]+\.md)#([\w-]+)")
_NAMED = re.compile(r"[\w./-]*\w\.md\b")
# What this project's texts must make sense without: a numbered law or row of a document that is not here.
_OUTSIDE = re.compile(r"\blaw \d+|\.\./shared\b|(?<![\w./-])/work/")


def files() -> Iterator[Path]:
    """Yield the files of the project, without what is made from them."""
    for top in sorted(PROJECT.iterdir()):
        if top.name in MADE or (top.name.startswith(".") and top.name != ".ci"):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix in TEXTS and path != Path(__file__):
                yield path


def facts() -> dict[str, str]:
    """Return each fact by its name."""
    parts = re.split(r"^(#{2,3}) (.*)\n", FACTS.read_text(), flags=re.MULTILINE)
    found = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return {title: text for level, title, text in found if level == "###"}


CITED = sorted(
    {
        (str(path.relative_to(PROJECT)), document, anchor)
        for path in files()
        if path != FACTS
        for document, anchor in _CITED.findall(path.read_text(errors="replace"))
    }
)


def test_each_cited_anchor_exists_in_its_document() -> None:
    for cited in CITED:
        _, document, anchor = cited
        found = [path for path in (PROJECT / "docs" / document, PROJECT / document) if path.exists()]
        assert anchor in anchors(found[0]), cited


def test_a_fact_is_cited_and_says_how_it_is_known() -> None:
    known = re.compile(r"^(Seen with|Read in) .*\d\.\d|^Read in `", re.MULTILINE)

    assert sorted(facts().keys() - {anchor for _, document, anchor in CITED if document == FACTS.name}) == []
    assert [fact for fact, text in facts().items() if not known.search(text)] == []


@cache
def _tests(file: Path) -> frozenset[str]:
    names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    return frozenset(name for name in names if name.startswith("test_"))


@pytest.mark.parametrize("document", [FACTS, *SECURITY, COMPATIBILITY], ids=lambda path: path.name)
def test_each_test_that_a_document_names_is_there(document: Path) -> None:
    named = re.findall(r"[`\"](tests/[\w/.:-]+)[`\"]", document.read_text())
    lost = []
    for file, _, test in (each.partition("::") for each in named):
        tests = _tests(PROJECT / file) if (PROJECT / file).is_file() else frozenset[str]()
        lost += [] if tests and (not test or test in tests) else [f"{file}::{test}"]

    assert len(named) > 10
    assert lost == []


def test_no_document_outside_the_repository_is_named() -> None:
    here, lost = {path.name for path in files()}, []
    for path in files():
        text = path.read_text(errors="replace")
        names = [name for name in _NAMED.findall(text) if name.rpartition("/")[2] not in here]
        lost += [(str(path), found) for found in (*names, *_OUTSIDE.findall(text))]

    assert lost == []
