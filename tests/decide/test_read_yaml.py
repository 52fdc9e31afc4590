"""What engines make of YAML beyond what its library does: words, tags, keys, aliases, and within which bounds."""

from typing import Any

import pytest
import yaml

from installer.cdi.specification import DEPTH, SIZE, VALUES, read_yaml
from installer.errors import InstallerError

# An alias as a key, an alias for ten of the one above: ten to the tenth values in 542 bytes.
BOMB = "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}' if level else 'x'] * 10)}]\n" for level in range(11)
)
LONG = "1" * (SIZE // 5 + 1)


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
        pytest.param("[!!str , !!str null, ! ~]", ["", "null", "~"], id="nothing that is told to be a text"),
        pytest.param("a: !!binary aGk=\n", {"a": "hi"}, id="bytes"),
        pytest.param("a: !<tag:yaml.org,2002:binary> 'aGk='\n", {"a": "hi"}, id="bytes, by the whole tag"),
        pytest.param("a: !!str aGk=\n", {"a": "aGk="}, id="letters"),
        pytest.param("a: &x\nb: [*x, &y c, *y]\n", {"a": None, "b": [None, "c", "c"]}, id="aliases"),
        pytest.param("a: &x b\n*x : c\n", {"a": "b", "b": "c"}, id="a text by an alias as a key"),
        pytest.param(
            "a: &x {b: c, d: e}\nf:\n  <<: *x\n  d: g\n",
            {"a": {"b": "c", "d": "e"}, "f": {"b": "c", "d": "g"}},
            id="a table that is merged: what stands there goes first",
        ),
        pytest.param(
            "a: [&x {b: c, d: e}, &y {b: f, g: h}]\ni: {<<: [*x, *y]}\n",
            {
                "a": [{"b": "c", "d": "e"}, {"b": "f", "g": "h"}],
                "i": {"b": "c", "d": "e", "g": "h"},
            },
            id="two tables that are merged: the first goes first",
        ),
        pytest.param("a: {'<<': b}\n", {"a": {"<<": "b"}}, id="in quotes nothing is merged"),
        pytest.param("a: '\\/'\nb: \"\\\\/\"\n", {"a": "\\/", "b": "\\/"}, id="a backslash, then a slash"),
        pytest.param("%YAML 1.1\n%TAG !e! tag:a.b:\n--- a\n", "a", id="directives"),
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
        pytest.param('a: "b\\/c"\n', id="a slash that is escaped"),
        pytest.param("a: b\na: c\n", id="the same key twice"),
        pytest.param("{a: b, 'a': c}\n", id="the same key twice in brackets"),
        pytest.param("~: a\n", id="nothing as a key"),
        pytest.param("[a]: b\n", id="a list as a key"),
        pytest.param("a: &x [b]\n? *x\n: c\n", id="a list by an alias as a key"),
        pytest.param("a: *x\n", id="an alias of nothing"),
        pytest.param("a: &x b\nc: &x [*x]\n", id="an alias of what it stands in"),
        pytest.param("a:\n  <<: b\n", id="a word that is merged"),
        pytest.param("a:\n  <<: [{}, b]\n", id="a list with a word that is merged"),
        pytest.param("a: {<<: }\n", id="nothing that is merged"),
        pytest.param("# \ufffd\na: b\n", id="what is no UTF-8, in a comment"),
        pytest.param("a: !!int b\n", id="a word told to be a number"),
        pytest.param("a: !!bool b\n", id="a word told to be yes or no"),
        pytest.param("%YAML 1.2\n---\na: b\n", id="another version"),
        pytest.param("# a\n\n%YAML 1.1\n%FOO\n---\na: b\n", id="a directive that nobody knows"),
    ],
)
def test_what_engines_refuse_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("# " + "x" * SIZE, "4 MiB", id="its size"),
        pytest.param("[" * (DEPTH + 1), "32 levels", id="its depth"),
        pytest.param("[" * 100_000, "32 levels", id="its depth, by far"),
        pytest.param("- \n" * VALUES, "262144 values", id="its values"),
        pytest.param(BOMB, "262144 values", id="its aliases"),
        pytest.param(f"{BOMB}? *a10\n: b\n", "262144 values", id="its aliases, one as a key"),
        pytest.param(f"- &a {LONG}\n" + "- *a\n" * 4, "4 MiB", id="what its aliases stand for, as values"),
        pytest.param(f"- &a {LONG}\n" + "- {*a : }\n" * 4, "4 MiB", id="what its aliases stand for, as keys"),
        pytest.param(f"- &a [{LONG}]\n- &b [*a, *a]\n- *b", "4 MiB", id="what aliases of aliases stand for"),
    ],
)
def test_what_is_out_of_bounds_is_refused_in_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(InstallerError) as refused:
        read_yaml(text)

    assert refused.value.problem.startswith("read a CDI specification (")
    assert reason in refused.value.problem


def test_what_is_just_within_bounds_is_read() -> None:
    assert read_yaml("# " + "x" * (SIZE - 2)) is None
    assert len(read_yaml(f"- &a {LONG}\n" + "- *a\n" * 3)) == 4
    assert read_yaml("[" * DEPTH + "]" * DEPTH)
    assert len(read_yaml("- \n" * (VALUES - 1))) == VALUES - 1
