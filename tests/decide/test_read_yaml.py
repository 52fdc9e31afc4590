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


MEANS: dict[str, Any] = {
    "a: {b: [c, 'd']}\ne: |\n  f\n": {"a": {"b": ["c", "d"]}, "e": "f\n"},
    "": None,
    "# a": None,
    "---\n": None,
    "a: b\n---\n- c\n": {"a": "b"},
    "a: b\n...\n[[[\n": {"a": "b"},
    "\ufeffa: b\n": {"a": "b"},
    "[~, null, NULL, Null, 'null', nULL, ]": [None, None, None, None, "null", "nULL"],
    "a: {'<<': b}\n": {"a": {"<<": "b"}},  # in quotes nothing is merged
}


def test_what_a_text_stands_for() -> None:
    assert {text: read_yaml(text) for text in MEANS} == MEANS


@pytest.mark.parametrize(
    "text",
    [
        *("a: [b\n", "a: b\n  c: d\n"),
        *('a: "\\ud800"\n', 'a: "\\U00110000"\n'),  # half a character, and one past the last
        *("a: b\na: c\n", "{a: b, 'a': c}\n"),
        *("~: a\n", "[a]: b\n"),
        "# \ufffd\na: b\n",  # what is no UTF-8, in a comment
    ],
)
def test_what_engines_refuse_is_refused(text: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_yaml(text)


OUT_OF_BOUNDS = {
    "# " + "x" * SIZE: "1 MiB",
    "[" * (DEPTH + 1): "32 levels",
    "[" * 100_000: "32 levels",
    "a: &x b\nc: *x\n": "an alias or a tag",
    "a: &x b\n*x : c\n": "an alias or a tag",
    "a: !!int b\n": "an alias or a tag",
    "a:\n  <<: {b: c}\n": "merged",
    'a: "b\\/c"\n': "a slash",
    "%YAML 1.2\n---\na: b\n": "directives",
    "%TAG !e! tag:a.b:\n--- a\n": "directives",
}


def test_what_is_out_of_bounds_is_refused_in_a_sentence() -> None:
    for text, reason in OUT_OF_BOUNDS.items():
        with pytest.raises(InstallerError) as refused:
            read_yaml(text)

        assert refused.value.problem.startswith("read a CDI specification (")
        assert reason in refused.value.problem


def test_what_is_just_within_bounds_is_read() -> None:
    assert read_yaml("# " + "x" * (SIZE - 2)) is None
    assert read_yaml("[" * DEPTH + "]" * DEPTH)
