"""Each fact that the code cites is in a document of this repository, and no document outside it is named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.documents import PROJECT, anchors

FACTS = PROJECT / "docs/engine-facts.md"
TEXTS = {".py", ".toml", ".md", ".patch", ".yaml", ".txt", ".sh", ".env", ""}
MADE = {"build", "node_toolkit_installer.egg-info"}
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


def _is_there(document: str, anchor: str) -> bool:
    found = [path for path in (PROJECT / "docs" / document, PROJECT / document) if path.exists()]
    return bool(found) and anchor in anchors(found[0])


def test_what_is_cited_is_there() -> None:
    assert [cited for cited in CITED if not _is_there(*cited[1:])] == []


def test_a_fact_is_cited_and_says_how_it_is_known() -> None:
    known = re.compile(r"^(Seen with|Read in) .*\d\.\d|^Read in `", re.MULTILINE)

    assert sorted(facts().keys() - {anchor for _, document, anchor in CITED if document == FACTS.name}) == []
    assert [fact for fact, text in facts().items() if not known.search(text)] == []


def test_each_test_that_a_fact_names_is_there() -> None:
    for named in re.findall(r"`(tests/[^`]+)`", FACTS.read_text()):
        file, _, test = named.partition("::")
        tree = ast.parse((PROJECT / file).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, named


def test_no_document_outside_the_repository_is_named() -> None:
    here = {path.name for path in files()}
    lost = [
        f"{path.relative_to(PROJECT)}: {name}"
        for path in files()
        for name in _NAMED.findall(path.read_text(errors="replace"))
        if name.rpartition("/")[2] not in here
    ]
    outside = [
        f"{path.relative_to(PROJECT)}: {found}"
        for path in files()
        for found in _OUTSIDE.findall(path.read_text(errors="replace"))
    ]

    assert lost == []
    assert outside == []
