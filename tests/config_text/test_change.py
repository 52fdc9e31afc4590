"""What becomes of a text that is edited and of one that is undone, where neither a real config nor a property shows it."""

from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from installer.config_text import ABSENT, Edit, Key, Syntax, TextError, WantedKey, json, toml
from installer.config_text.change import apply, finish, list_missing, open_draft, parse, undo
from installer.errors import InstallerError

JSON, TOML = Syntax.JSON, Syntax.TOML
NAME = "/etc/config"
PATH = WantedKey(("runtimes", "nvidia", "path"), "/x")
DEFAULT = WantedKey(("default-runtime",), "nvidia")
CRI = ("plugins", "io.containerd.grpc.v1.cri", "containerd")
TYPE = WantedKey((*CRI, "runtimes", "nvidia", "runtime_type"), "io")
BINARY = WantedKey((*CRI, "runtimes", "nvidia", "options", "BinaryName"), "/x")
NVIDIA = WantedKey((*CRI, "default_runtime_name"), "nvidia")
VERSION = WantedKey(("version",), 2)
IMPORT = WantedKey(("imports",), "/ours", member=True)
KEY = WantedKey(("a", "ours"), 1)
AB: Key = ("a", "b")
Changed = tuple[str, tuple[Edit, ...]]


def changed(syntax: Syntax, text: str, wants: Sequence[WantedKey]) -> Changed:
    return apply(text, wants, syntax, name=NAME)


def undone(syntax: Syntax, text: str, edits: Sequence[Edit]) -> Changed:
    return undo(text, edits, syntax, name=NAME)


def test_two_members_are_two_edits_and_a_header_is_one() -> None:
    new, edits = changed(TOML, "", [IMPORT, WantedKey(("imports",), "/more", member=True)])

    assert new == 'imports = ["/ours", "/more"]\n'
    assert undone(TOML, new, edits) == ("", ())
    assert undone(TOML, new, edits[1:]) == ('imports = ["/ours"]\n', ())
    assert undone(TOML, new, edits[:1]) == ('imports = ["/more"]\n', ())
    assert [edit.key for edit in changed(TOML, "", [TYPE, NVIDIA])[1]].count(CRI) == 1


@pytest.mark.parametrize(
    ("syntax", "text", "wants"),
    [
        pytest.param(JSON, '{"default-runtime": "nvi\\u0064ia"}', [DEFAULT], id="escaped"),
        pytest.param(
            JSON, '{"a": 1.50}', [WantedKey(("b",), ABSENT), WantedKey(("a", "b"), ABSENT)], id="absent"
        ),
        pytest.param(TOML, "[a]\nours = 0x1\n", [KEY], id="another spelling of the number"),
        pytest.param(TOML, "imports = ['''/ours''']", [IMPORT], id="a member, quoted otherwise"),
    ],
)
def test_a_key_that_is_already_right_causes_no_edit(
    syntax: Syntax, text: str, wants: list[WantedKey]
) -> None:
    assert changed(syntax, text, wants) == (text, ())


@pytest.mark.parametrize(
    ("syntax", "text", "key", "without", "back"),
    [
        pytest.param(JSON, '{"a": 1, "b": [2]}', ("b",), '{"a": 1}', '{"a": 1, "b": [2]}', id="the last"),
        pytest.param(JSON, '{"a": 1, "b": [2]}', ("a",), '{"b": [2]}', '{"b": [2], "a": 1}', id="the first"),
        pytest.param(TOML, "[a]\nb = 1\nc = 2\n", AB, "[a]\nc = 2\n", "[a]\nc = 2\nb = 1\n", id="line"),
        pytest.param(TOML, "a = {b = 1, c = 2}", AB, "a = {c = 2}", "a = {c = 2, b = 1}", id="inline"),
        pytest.param(TOML, "x = 1\na.b = 1 # c\n", AB, "x = 1\n# c\n", None, id="dotted, a comment"),
    ],
)
def test_a_deleted_key_comes_back_at_the_end(
    syntax: Syntax, text: str, key: Key, without: str, back: str | None
) -> None:
    new, edits = changed(syntax, text, [WantedKey(key, ABSENT)])

    assert new == without
    found, left = undone(syntax, new, edits)
    assert left == ()
    assert found == back or back is None
    assert parse(found, syntax, name=NAME) == parse(text, syntax, name=NAME)


@pytest.mark.parametrize(
    ("syntax", "text", "reason"),
    [
        pytest.param(JSON, '{"a": NaN}', "line 1, column 7: NaN is not JSON", id="not a number"),
        pytest.param(JSON, '{"a": "\x00"}', "line 1, column 8: invalid control character", id="NUL"),
        pytest.param(TOML, "a = '\udc80'", "character 6: half a surrogate pair", id="surrogate in TOML"),
        pytest.param(TOML, "a = " + "9" * 5000, "a number has more than 4300 digits", id="endless integer"),
        pytest.param(TOML, "a = " + "[" * 100_000, "nested too deeply", id="too deep"),
    ],
)
def test_invalid_text_is_refused_with_its_place(syntax: Syntax, text: str, reason: str) -> None:
    with pytest.raises(InstallerError) as caught:
        parse(text, syntax, name=NAME)

    assert caught.value.problem.lower().startswith(f"read {NAME} as {syntax.upper()} ({reason}".lower())
    assert caught.value.remedy == "correct the file, then run again"


def test_depth_never_ends_in_a_traceback() -> None:
    dotted, array = "a." * 5000 + "a = 1\n", f"a = {'[' * 200}{']' * 200}\n"
    for syntax, text in ((JSON, '{"a":' * 900 + "{}" + "}" * 900), (TOML, dotted), (TOML, array)):
        with suppress(InstallerError):
            new, edits = changed(syntax, text, [VERSION])
            assert undone(syntax, new, edits) == (text, ())


def test_json_is_read_as_go_reads_it() -> None:
    """Of a doubled name the last, and of doubled objects both."""
    assert parse('{"a": 1, "a": {"b": 1, "b": 2}}', JSON, name=NAME) == {"a": {"b": 2}}
    assert parse('{"a": {"b": 1, "c": 1}, "a": {"b": 2}}', JSON, name=NAME) == {"a": {"b": 2, "c": 1}}


def test_a_number_is_copied_as_it_was_written() -> None:
    in_json, in_toml = '{"a": 1.50, "b": 1e999, "c": -0}', "a = 1.50\nb = -inf\nc = 1_0.0\nd = 7\n"
    for syntax, empty, text in ((JSON, "{}", in_json), (TOML, "", in_toml)):
        tree = parse(text, syntax, name=NAME)

        assert changed(syntax, empty, [WantedKey((name,), value) for name, value in tree.items()])[0] == text


REMARKS = {'"/x"': '"/x" # why', "[z]\n": "[z]\n# end of z\n"}
IN_TOML = changed(TOML, "x = 1\n\n[z]\n", [TYPE, BINARY, NVIDIA])


@pytest.mark.parametrize(
    ("edit", "back", "left"),
    [
        pytest.param({'"/x"': '"/theirs"'}, None, [BINARY.key], id="a value they changed is reported"),
        pytest.param(REMARKS, "x = 1\n\n[z]\n# end of z\n# why\n", [], id="comments they wrote stay"),
        pytest.param({"\n": "\r\n"}, "x = 1\r\n\r\n[z]\r\n", [], id="line ends they changed"),
    ],
)
def test_an_undo_of_toml_removes_only_what_is_still_ours(
    edit: dict[str, str], back: str | None, left: list[Key]
) -> None:
    now = IN_TOML[0]
    for old, new in edit.items():
        now = now.replace(old, new)

    text, remaining = undone(TOML, now, IN_TOML[1])

    assert [edit.key for edit in remaining] == left
    assert back is None or text == back
    assert undone(TOML, text, IN_TOML[1]) == (text, remaining)


@pytest.mark.parametrize(
    ("text", "now", "back"),
    [
        pytest.param("", "imports = ['/b', \"/ours\", '/c']\n", "imports = ['/b', '/c']\n", id="between"),
        pytest.param("", "imports = ['/ours' , '/c']\n", "imports = ['/c']\n", id="quoted otherwise"),
        pytest.param("imports = []", "imports = [\n'/ours' # c\n]", "imports = [\n# c\n]", id="comment"),
        pytest.param(
            *("imports = ['a']", "imports = [\n'a', # a\n'/ours'\n]", "imports = [\n'a' # a\n]"),
            id="the comma and the line go with it",
        ),
    ],
)
def test_only_our_member_leaves_an_array_that_others_edited(text: str, now: str, back: str) -> None:
    _, edits = changed(TOML, text, [IMPORT])

    assert undone(TOML, now, edits) == (back, ())
    assert undone(TOML, "[[imports]]\n", edits) == ("[[imports]]\n", edits)


def test_an_undo_leaves_and_reports_what_stands_in_the_place_of_our_table() -> None:
    _, edits = changed(JSON, "{}", [PATH, DEFAULT])

    text, left = undone(JSON, '{"runtimes": []}', edits)

    assert (text, [edit.key for edit in left]) == ('{"runtimes": []}', [("runtimes",)])


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("[plugins]\n[plugins]\n", "line 2, column 9: the table plugins is there twice"),
        ('["x.y".z]\n["x.y".z]\n', 'line 2, column 9: the table "x.y".z is there twice'),
        ("a = [1]\n[[a]]\n", "line 2, column 4: a is there twice"),
        ("a = 1\na = 2\nb = 3\n", "line 2, column 6: a key is there twice"),
    ],
)
def test_a_key_that_toml_has_twice_is_named_as_its_owner_wrote_it(text: str, flaw: str) -> None:
    with pytest.raises(TextError) as raised:
        toml.load(text)

    assert str(raised.value) == flaw


@pytest.mark.parametrize("doubled", ['"default-runtime": 1', '"runtimes": {}'])
def test_an_undo_refuses_what_others_have_doubled(doubled: str) -> None:
    _, edits = changed(JSON, "{}", [PATH, DEFAULT])
    with pytest.raises(InstallerError, match="is there twice"):
        undone(JSON, f"{{{doubled}, {doubled}}}", edits)


def spoilt(syntax: Syntax, text: str, wrong: str, key: Key, literal: str | None) -> None:
    """Change one key with a grammar that makes ``wrong`` of every text."""
    spoilt = {"insert": lambda *_: wrong, "remove": lambda *_: wrong}
    with open_draft(text, syntax, NAME) as draft:
        draft.grammar = cast("Any", SimpleNamespace(**vars(toml if syntax is TOML else json) | spoilt))
        if literal is None:
            draft.replace(key, None)
        else:
            draft.insert(key, literal)
        finish(draft, text, [Edit(key, None, "1")] if literal is None else [])


@pytest.mark.parametrize(
    ("syntax", "text", "wrong"),
    [
        pytest.param(TOML, "a = nan\n", "a = inf\nours = 1\n", id="another value changed"),
        pytest.param(TOML, "a = true\n", "a = 1\nours = 1\n", id="true is not one"),
        pytest.param(TOML, "a = 1\n", "a = 1\nours = \n", id="not TOML any more"),
        pytest.param(JSON, '{"a": 1.0}', '{"a": 1.00, "ours": 1}', id="a number written otherwise"),
        pytest.param(JSON, '{"a": 1}', '{"a": 1, "ours": 1, "ours": 1}', id="our name doubled"),
    ],
)
def test_a_text_that_differs_in_anything_else_is_not_let_out(syntax: Syntax, text: str, wrong: str) -> None:
    with pytest.raises(InstallerError, match="edit /etc/config without touching anything else") as caught:
        spoilt(syntax, text, wrong, ("ours",), "1")

    assert "report this as a bug" in caught.value.remedy


def test_an_object_does_not_vanish_with_its_last_key() -> None:
    with pytest.raises(InstallerError, match="without touching anything else"):
        spoilt(JSON, '{"a": {"ours": 1}}', "{}", ("a", "ours"), None)


@pytest.mark.parametrize(
    ("text", "after", "missing"),
    [
        ("a = 1", '"x"', True),
        ("a = 1", None, False),
        ("", None, False),
        ("a.b = 'x'", '"x"', False),
        ('a.b = "y"', '"x"', True),
        ('a.b = "x"', None, True),
    ],
    ids=["a value on the way", "gone with it", "gone", "otherwise spelled", "another value", "still there"],
)
def test_an_edit_is_missing_where_its_key_does_not_hold_what_it_put_there(
    text: str, after: str | None, *, missing: bool
) -> None:
    edit = Edit(("a", "b"), None, after)

    assert bool(list_missing(text, [edit], TOML, name="x")) is missing
