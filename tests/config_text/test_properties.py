"""The laws of an edit, for texts that nobody would have thought of."""

import json
import os
from typing import Any

import tomlkit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from installer.config_text import Edit, Syntax, WantedKey, same
from installer.config_text.change import apply, parse, undo
from tests.config_text.texts import cases, edited

Case = tuple[str, list[WantedKey], tuple[str, tuple[Edit, ...]]]
SYNTAXES = st.sampled_from(Syntax)
# EXAMPLES=5000 digs deeper.
SETTINGS = settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@st.composite
def any_case(draw: st.DrawFn) -> tuple[Syntax, Case]:
    syntax = draw(SYNTAXES)
    return syntax, draw(cases(syntax))


def tree_of(text: str, syntax: Syntax) -> Any:
    return parse(text, syntax, name="config")


def without_empty(tree: Any) -> Any:
    """The tree less its empty tables: with a dotted name or a header, TOML may lose one with its last key."""
    if not isinstance(tree, dict):
        return tree
    branches = {name: without_empty(child) for name, child in tree.items()}
    return {name: child for name, child in branches.items() if child != {}}


@SETTINGS
@given(any_case())
def test_undo_gives_back_every_byte(case: tuple[Syntax, Case]) -> None:
    syntax, (text, _, (new, edits)) = case

    back, left = undo(new, edits, syntax, name="config")

    assert back == text
    assert left == ()


@SETTINGS
@given(any_case())
def test_applying_the_same_edits_twice_changes_nothing_more(case: tuple[Syntax, Case]) -> None:
    syntax, (_, wants, (new, _)) = case

    assert apply(new, wants, syntax, name="config") == (new, ())


@SETTINGS
@given(any_case())
def test_only_the_wanted_keys_change(case: tuple[Syntax, Case]) -> None:
    syntax, (text, wants, (new, _)) = case

    expected = tree_of(text, syntax)
    for want in wants:
        member = want.value

        def holds(now: Any, want: WantedKey = want, member: Any = member) -> Any:
            if not want.member:
                return member
            return (now or []) if any(same(member, x) for x in now or []) else [*(now or []), member]

        expected = edited(expected, holds, want.key)

    assert same(tree_of(new, syntax), expected)


@SETTINGS
@given(any_case())
def test_an_edit_that_only_adds_keeps_every_character(case: tuple[Syntax, Case]) -> None:
    _, (text, _, (new, edits)) = case
    assume(all(edit.before is None or edit.member for edit in edits))

    rest = iter(new)
    assert all(character in rest for character in text), "a subsequence"


@SETTINGS
@given(any_case(), st.data())
def test_undo_keeps_what_others_added_meanwhile(case: tuple[Syntax, Case], data: st.DataObject) -> None:
    syntax, (text, wants, (new, edits)) = case
    parents = [want.key[:-1] for want in wants if not want.member] + [()]
    theirs = [
        WantedKey(
            (*data.draw(st.sampled_from(parents)), "theirs"), data.draw(st.sampled_from([1, "x", [True]]))
        )
    ]
    new, _ = apply(new, theirs, syntax, name="config")
    if syntax is Syntax.TOML:
        new += "# theirs" if new.endswith("\n") else " # theirs"

    back, left = undo(new, edits, syntax, name="config")

    assert left == ()
    assert back.endswith("# theirs") or syntax is Syntax.JSON
    expected, _ = apply(text, theirs, syntax, name="config")
    assert same(without_empty(tree_of(back, syntax)), without_empty(tree_of(expected, syntax)))
    assert undo(back, edits, syntax, name="config") == (back, ())


@SETTINGS
@given(any_case(), st.data())
def test_undo_leaves_and_reports_a_value_others_changed(
    case: tuple[Syntax, Case], data: st.DataObject
) -> None:
    syntax, (_, _, (new, edits)) = case
    values = [edit for edit in edits if edit.after not in {None, "{}"} and not edit.member]
    assume(values)
    theirs = data.draw(st.sampled_from(values))
    changed, _ = apply(new, [WantedKey(theirs.key, "somebody else's")], syntax, name="config")

    back, left = undo(changed, edits, syntax, name="config")

    assert left == (theirs,)
    rest = tuple(edit for edit in edits if edit != theirs)
    assert apply(back, [WantedKey(theirs.key, "somebody else's")], syntax, name="config") == (back, ())
    assert undo(back, rest, syntax, name="config") == (back, ())


@SETTINGS
@given(any_case())
def test_undo_finds_its_keys_in_a_file_written_anew(case: tuple[Syntax, Case]) -> None:
    syntax, (text, wants, (new, edits)) = case
    assume(not any(want.value == {} for want in wants))
    tree = tree_of(new, syntax)
    rewritten = json.dumps(tree, sort_keys=True) if syntax is Syntax.JSON else tomlkit.dumps(tree)
    assume("Infinity" not in rewritten)
    assume(same(tree_of(rewritten, syntax), tree))

    back, _ = undo(rewritten, edits, syntax, name="config")

    assert same(without_empty(tree_of(back, syntax)), without_empty(tree_of(text, syntax)))
