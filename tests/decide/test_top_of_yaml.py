"""The uppermost table of a YAML text: what stands behind each key, and what is not read."""

import pytest

from installer.decide.top_of_yaml import KEPT, top_of_yaml


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("a: b\n", {"a": "b"}),
        ("A: b\n", {"a": "b"}),
        ("a:\n", {"a": ""}),
        ("a: []\n", {"a": ""}),
        ("a: ~\n", {"a": ""}),
        ("a: b # c\n", {"a": "b"}),
        ("a: 'b'\n'c': \"d\"\n", {"a": "b", "c": "d"}),
        ("a:\n- b\n", {"a": "- b"}),
        ("a: >-\n  b\n  c\n", {"a": "b c"}),
        ("  a: b\n  c: d\n", {"a": "b", "c": "d"}),
        ("---\na: b\n---\na: c\n", {"a": "b"}),
        ("%YAML 1.2\n---\na: b\n...\nc: d\n", {"a": "b"}),
        ("a: &x b\n", {"a": "b"}),
        ("a: !!str b\n", {"a": "b"}),
        ("\ufeffa: b\n", {"a": "b"}),
        ("{}", {}),
        ("{a: b}", {"a": "b"}),
        ("{a: b,}", {"a": "b"}),
        ("{a: , c: d}", {"a": "", "c": "d"}),
        ("{a, c: d}", {"a": "", "c": "d"}),
        ("{a: {b: c}, d: [e, f]}", {"a": "{ b : c }", "d": "[ e , f ]"}),
        ('{"a": "b", "c":\n"d"}', {"a": "b", "c": "d"}),
        ("{a: b} # c", {"a": "b"}),
    ],
)
def test_what_stands_behind_each_key(text: str, found: dict[str, str]) -> None:
    assert top_of_yaml(text) == found


@pytest.mark.parametrize(
    "text",
    ["a: *x\n", "<<: {a: b}\n", "- a\n", "? a\n: b\n", "{a: b", "{a: b} c", "[a]", "plain"],
)
def test_what_is_said_in_another_way_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        top_of_yaml(text)


def test_of_a_long_value_its_beginning_is_kept() -> None:
    found = top_of_yaml("a:\n" + "  - item\n" * KEPT)["a"]

    assert KEPT <= len(found) < 2 * KEPT
