"""What engines make of YAML beyond what its library does: words and keys, and within which bounds it is read."""

from typing import Any

import pytest
import yaml

from installer.cdi.specification import DEPTH, SIZE, read_yaml
from installer.errors import InstallerError


@pytest.fixture(params=["C", "Python"], autouse=True)
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with the library's parser in C, which the images have, and with that in Python."""
    assert hasattr(yaml, "CBaseLoader")
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CBaseLoader")


@pytest.mark.parametrize(
    ("text", "means"),
    [
        pytest.param("a: {b: [c, 'd']}\ne: |\n  f\n", {"a": {"b": ["c", "d"]}, "e": "f\n"}, id="all shapes"),
        pytest.param("", None, id="no text"),
        pytest.param("# a", None, id="a comment alone"),
        pytest.param("---\n", None, id="a mark alone"),
        pytest.param("a: b\n---\n- c\n", {"a": "b"}, id="the first document"),
        pytest.param("a: b\n...\n[[[\n", {"a": "b"}, id="nothing behind the end of it"),
        pytest.param("\ufeffa: b\n", {"a": "b"}, id="a byte order mark"),
        pytest.param(
            "[~, null, NULL, Null, 'null', nULL, ]",
            [None, None, None, None, "null", "nULL"],
            id="nothing, in its spellings",
        ),
        pytest.param("a: {'<<': b}\n", {"a": {"<<": "b"}}, id="in quotes nothing is merged"),
    ],
)
def test_what_a_text_stands_for(text: str, means: Any) -> None:
    assert read_yaml(text) == means


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: [b\n", id="cut off"),
        pytest.param("a: b\n  c: d\n", id="a table in a word"),
        pytest.param('a: "\\ud800"\n', id="half a character"),
        pytest.param('a: "\\U00110000"\n', id="a character past the last"),
        pytest.param("a: b\na: c\n", id="the same key twice"),
        pytest.param("{a: b, 'a': c}\n", id="the same key twice in brackets"),
        pytest.param("~: a\n", id="nothing as a key"),
        pytest.param("[a]: b\n", id="a list as a key"),
        pytest.param("# \ufffd\na: b\n", id="what is no UTF-8, in a comment"),
    ],
)
def test_what_engines_refuse_is_refused(text: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("# " + "x" * SIZE, "1 MiB", id="its size"),
        pytest.param("[" * (DEPTH + 1), "32 levels", id="its depth"),
        pytest.param("[" * 100_000, "32 levels", id="its depth, by far"),
        pytest.param("a: &x b\nc: *x\n", "an alias or a tag", id="an alias"),
        pytest.param("a: &x b\n*x : c\n", "an alias or a tag", id="an alias as a key"),
        pytest.param("a: !!int b\n", "an alias or a tag", id="a tag"),
        pytest.param("a:\n  <<: {b: c}\n", "merged", id="a table that is merged"),
        pytest.param('a: "b\\/c"\n', "a slash", id="a slash that is escaped"),
        pytest.param("%YAML 1.2\n---\na: b\n", "directives", id="another version"),
        pytest.param("%TAG !e! tag:a.b:\n--- a\n", "directives", id="directives"),
    ],
)
def test_what_is_out_of_bounds_is_refused_in_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(InstallerError) as refused:
        read_yaml(text)

    assert refused.value.problem.startswith("read a CDI specification (")
    assert reason in refused.value.problem


def test_what_is_just_within_bounds_is_read() -> None:
    assert read_yaml("# " + "x" * (SIZE - 2)) is None
    assert read_yaml("[" * DEPTH + "]" * DEPTH)
