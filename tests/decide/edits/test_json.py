from collections.abc import Sequence
from typing import Any

import pytest

from installer.config_text import ABSENT, Edit, Syntax, Want
from installer.config_text.change import apply, parse, undo
from installer.errors import InstallerError

NAME = "/etc/docker/daemon.json"
PATH = Want(("runtimes", "nvidia", "path"), "/x")
DEFAULT = Want(("default-runtime",), "nvidia")


def changed(text: str, wants: Sequence[Want]) -> tuple[str, tuple[Edit, ...]]:
    return apply(text, wants, Syntax.JSON, name=NAME)


def undone(text: str, edits: Sequence[Edit]) -> tuple[str, tuple[Edit, ...]]:
    return undo(text, edits, Syntax.JSON, name=NAME)


@pytest.mark.parametrize(
    ("text", "wants", "expected"),
    [
        pytest.param(
            "",
            [PATH, DEFAULT],
            '{\n    "runtimes": {\n        "nvidia": {\n            "path": "/x"\n        }\n    },\n'
            '    "default-runtime": "nvidia"\n}\n',
            id="an empty file is written with four spaces",
        ),
        pytest.param(
            "{}", [DEFAULT], '{"default-runtime": "nvidia"}', id="an empty object stays on its line"
        ),
        pytest.param(
            "{ }\n", [DEFAULT], '{ "default-runtime": "nvidia" }\n', id="the space in it is on both sides"
        ),
        pytest.param(
            "{\n}", [DEFAULT], '{\n    "default-runtime": "nvidia"\n}', id="an open object gets a line"
        ),
        pytest.param(
            '{"a":1}',
            [PATH],
            '{"a":1,"runtimes":{"nvidia":{"path":"/x"}}}',
            id="compact stays compact",
        ),
        pytest.param(
            '{"a": 1, "b": 2}',
            [DEFAULT],
            '{"a": 1, "b": 2, "default-runtime": "nvidia"}',
            id="one line stays one line",
        ),
        pytest.param(
            '{\n\t"a" : 1\n}\n',
            [PATH],
            '{\n\t"a" : 1,\n\t"runtimes" : {\n\t\t"nvidia" : {\n\t\t\t"path" : "/x"\n\t\t}\n\t}\n}\n',
            id="tabs and a space before the colon are kept up",
        ),
        pytest.param(
            '\ufeff{\r\n  "a": 1\r\n}',
            [DEFAULT],
            '\ufeff{\r\n  "a": 1,\r\n  "default-runtime": "nvidia"\r\n}',
            id="a byte order mark and line ends of two characters stay",
        ),
        pytest.param(
            '{\n  "runtimes": {\n    "a": {}\n  }\n}',
            [PATH],
            '{\n  "runtimes": {\n    "a": {},\n    "nvidia": {\n      "path": "/x"\n    }\n  }\n}',
            id="a new object goes behind its siblings",
        ),
        pytest.param(
            '{"default-runtime" : "runc", "big": 12345678901234567890123, "f": 1.0}',
            [DEFAULT],
            '{"default-runtime" : "nvidia", "big": 12345678901234567890123, "f": 1.0}',
            id="a value is replaced in its place and numbers stay as written",
        ),
        pytest.param(
            r'{"default\u002druntime": "runc"}',
            [DEFAULT],
            r'{"default\u002druntime": "nvidia"}',
            id="a name is found however it is escaped",
        ),
        pytest.param(
            '{"runtimes": null}',
            [PATH],
            '{"runtimes": {"nvidia": {"path": "/x"}}}',
            id="null makes room for an object",
        ),
        pytest.param(
            '{"runtimes": {"a": {}}}',
            [Want(("runtimes",), {})],
            '{"runtimes": {}}',
            id="an object is emptied",
        ),
        pytest.param(
            '{"a": 1, "a": 2, "b": 0}',
            [DEFAULT],
            '{"a": 1, "a": 2, "b": 0, "default-runtime": "nvidia"}',
            id="a name that is there twice elsewhere stays so",
        ),
        pytest.param(
            "{}",
            [Want(("é",), 'ü"\\\n\x01')],
            '{"é": "ü\\"\\\\\\n\\u0001"}',
            id="only what must be is escaped",
        ),
        pytest.param(
            '{\n"a":\n1}',
            [DEFAULT],
            '{\n"a":\n1,\n"default-runtime": "nvidia"}',
            id="a line end behind a colon is not copied",
        ),
        pytest.param('{"a": 1}', [Want(("a",), value=True)], '{"a": true}', id="one is not true"),
        pytest.param(
            "{}",
            [Want(("args",), ["-a", 1])],
            '{"args": ["-a", 1]}',
            id="a list is written on one line",
        ),
        pytest.param(
            '{"a": {"x": 1}}', [Want(("a",), "b")], '{"a": "b"}', id="a value takes the place of an object"
        ),
    ],
)
def test_a_want_is_written_like_its_neighbours_and_undone(
    text: str, wants: list[Want], expected: str
) -> None:
    new, edits = changed(text, wants)

    assert new == expected
    assert changed(new, wants) == (expected, ())
    assert undone(new, edits) == (text, ())


def test_each_created_container_is_an_edit() -> None:
    _, edits = changed('{"runtimes": null}', [PATH])

    assert edits == (
        Edit(("runtimes",), "null", "{}"),
        Edit(("runtimes", "nvidia"), None, "{}"),
        Edit(("runtimes", "nvidia", "path"), None, '"/x"'),
    )


@pytest.mark.parametrize(
    ("text", "wants"),
    [
        pytest.param('{"default-runtime": "nvi\\u0064ia"}', [DEFAULT], id="the same string, escaped"),
        pytest.param(
            '{"a": {"y": [1, null], "x": {}}}', [Want(("a",), {"x": {}, "y": [1, None]})], id="another order"
        ),
        pytest.param('{"a": 1.50}', [Want(("b",), ABSENT), Want(("a", "b"), ABSENT)], id="absent already"),
        pytest.param("", [Want(("b",), ABSENT)], id="nothing in nothing"),
    ],
)
def test_a_key_that_is_already_right_causes_no_edit(text: str, wants: list[Want]) -> None:
    assert changed(text, wants) == (text, ())


@pytest.mark.parametrize(
    ("text", "key", "without", "back"),
    [
        pytest.param('{"a": 1, "b": [2]}', ("b",), '{"a": 1}', '{"a": 1, "b": [2]}', id="the last"),
        pytest.param('{"a": 1, "b": [2]}', ("a",), '{"b": [2]}', '{"b": [2], "a": 1}', id="the first"),
        pytest.param(
            '{ "a": {"b": null} }', ("a", "b"), '{ "a": {} }', '{ "a": {"b": null} }', id="the only one"
        ),
    ],
)
def test_a_deleted_key_comes_back_at_the_end(
    text: str, key: tuple[str, ...], without: str, back: str
) -> None:
    new, edits = changed(text, [Want(key, ABSENT)])

    assert new == without
    assert undone(new, edits) == (back, ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param('{"runtimes": []}', "runtimes is an array, but an object belongs there", id="array"),
        pytest.param('{"runtimes": {"nvidia": "x"}}', "runtimes.nvidia is a string, but", id="string"),
        pytest.param('{"runtimes": 1e999}', "runtimes is a number, but", id="number"),
        pytest.param('{"runtimes": {}, "runtimes": {}}', "runtimes is there twice", id="doubled container"),
        pytest.param(
            '{"runtimes": {"nvidia": {"path": 1, "path": 2}}}',
            "runtimes.nvidia.path is there twice",
            id="key",
        ),
    ],
)
def test_what_is_in_the_way_is_named(text: str, problem: str) -> None:
    with pytest.raises(InstallerError) as caught:
        changed(text, [PATH])

    assert caught.value.problem.startswith(f"edit {NAME} ({problem}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            '{\n  "a": 1\n  "b": 2}', "line 3, column 3: expecting ',' delimiter", id="comma missing"
        ),
        pytest.param("{} x", "line 1, column 4: extra data", id="trailing text"),
        pytest.param("[]", "line 1, column 1: expected an object", id="not an object"),
        pytest.param('{"a": 1} // c', "line 1, column 10: comments are not allowed", id="comment"),
        pytest.param("/* a */ {}", "line 1, column 1: comments are not allowed", id="comment before"),
        pytest.param('{ # a\n"a": 1}', "line 1, column 3: comments are not allowed", id="hash"),
        pytest.param('{"a": NaN}', "line 1, column 7: NaN is not JSON", id="not a number"),
        pytest.param('{"a": ["NaN", -Infinity]}', "line 1, column 15: -Infinity is not JSON", id="infinity"),
        pytest.param('{"a": "\x00"}', "line 1, column 8: invalid control character at", id="NUL in a string"),
        pytest.param("\x00", "line 1, column 1: expecting value", id="NUL"),
        pytest.param('{"a": "\\x"}', "line 1, column 8: invalid \\escape", id="bad escape"),
        pytest.param('{"a": "\udc80"}', "character 8: half a surrogate pair", id="lone surrogate"),
        pytest.param("[" * 100_000, "nested too deeply", id="too deep an array"),
        pytest.param('{"a":' * 100_000, "nested too deeply", id="too deep an object"),
        pytest.param("\u00a0", "line 1, column 1: expecting value", id="space that JSON does not know"),
    ],
)
def test_invalid_text_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(InstallerError) as caught:
        parse(text, Syntax.JSON, name=NAME)

    assert caught.value.problem.startswith(f"read {NAME} as JSON ({reason}")
    assert caught.value.remedy == "correct the file, then run again"


def test_depth_never_ends_in_a_traceback() -> None:
    for depth in (100, 300, 900):
        text = '{"a":' * depth + "{}" + "}" * depth
        try:
            new, edits = changed(text, [DEFAULT])
        except InstallerError:
            continue
        assert undone(new, edits) == (text, ())


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        pytest.param("\ufeff \r\n", {}, id="nothing"),
        pytest.param('{"a": 1, "b": [true, null, "x"]}', {"a": 1, "b": [True, None, "x"]}, id="values"),
        pytest.param(
            '{"a": 1, "a": {"b": 1, "b": 2}}', {"a": {"b": 2}}, id="of a doubled name the last counts"
        ),
        pytest.param(
            '{"a": {"b": 1, "c": 1}, "a": {"b": 2}}', {"a": {"b": 2, "c": 1}}, id="a doubled object is one"
        ),
        pytest.param(
            '{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}, id="big"
        ),
    ],
)
def test_text_is_read_as_go_reads_it(text: str, tree: dict[str, Any]) -> None:
    assert parse(text, Syntax.JSON, name=NAME) == tree


def test_a_number_is_copied_as_it_was_written() -> None:
    tree = parse('{"a": 1.50, "b": 1e999, "c": -0}', Syntax.JSON, name=NAME)

    new, _ = changed("{}", [Want((name,), value) for name, value in tree.items()])

    assert new == '{"a": 1.50, "b": 1e999, "c": -0}'


OURS = changed('{\n  "a": 1\n}\n', [PATH, DEFAULT])


@pytest.mark.parametrize(
    ("now", "back", "left"),
    [
        pytest.param(
            OURS[0].replace('"/x"', '"/theirs"'),
            '{\n  "a": 1,\n  "runtimes": {\n    "nvidia": {\n      "path": "/theirs"\n    }\n  }\n}\n',
            [("runtimes", "nvidia", "path")],
            id="a value they changed stays and is reported",
        ),
        pytest.param(
            OURS[0].replace('"/x"', '"/x",\n      "theirs": 1'),
            '{\n  "a": 1,\n  "runtimes": {\n    "nvidia": {\n      "theirs": 1\n    }\n  }\n}\n',
            [],
            id="a key they added keeps our container",
        ),
        pytest.param(
            '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/x"}}, "a": 1}',
            '{"a": 1}',
            [],
            id="a file written anew in another order",
        ),
        pytest.param('{"a": 1}', '{"a": 1}', [], id="gone already"),
        pytest.param("", "", [], id="an emptied file"),
        pytest.param(
            '{"runtimes": []}', '{"runtimes": []}', [("runtimes",)], id="something else in its place"
        ),
    ],
)
def test_undo_removes_only_what_is_still_ours(now: str, back: str, left: list[tuple[str, ...]]) -> None:
    text, remaining = undone(now, OURS[1])

    assert text == back
    assert [edit.key for edit in remaining] == left


@pytest.mark.parametrize(
    "text", ['{"default-runtime": 1, "default-runtime": 1}', '{"runtimes": {}, "runtimes": {}}']
)
def test_undo_refuses_what_others_have_doubled(text: str) -> None:
    with pytest.raises(InstallerError, match="is there twice"):
        undone(text, OURS[1])


def test_a_replaced_value_returns_as_it_was_written() -> None:
    text = '{"default-runtime": "r\\u0075nc", "runtimes": {"a": {"path" : 1}}}'
    new, edits = changed(text, [DEFAULT, Want(("runtimes",), {})])

    assert undone(new, edits) == (text, ())
    assert undone(text, edits) == (text, ())


def test_what_others_put_into_an_emptied_object_stays() -> None:
    _, edits = changed('{"runtimes": {"a": {}}}', [Want(("runtimes",), {})])

    assert undone('{"runtimes": {"b": {}}}', edits) == ('{"runtimes": {"b": {}}}', ())


def test_undo_does_not_depend_on_the_order_of_the_rows() -> None:
    assert undone(OURS[0], OURS[1][::-1]) == ('{\n  "a": 1\n}\n', ())


def test_members_are_for_toml() -> None:
    with pytest.raises(ValueError, match="only TOML"):
        changed("{}", [Want(("a",), "b", member=True)])


@pytest.mark.parametrize("before", ["null", "{}", "{ }"])
def test_what_an_object_took_the_place_of_comes_back_and_nothing_is_left_to_undo(before: str) -> None:
    text = f'{{"runtimes": {before}}}'
    wanted = [Want(("runtimes", "nvidia", "path"), "/nvidia")]
    after, edits = apply(text, wanted, Syntax.JSON, name="/d.json")

    assert undo(after, edits, Syntax.JSON, name="/d.json") == (text, ())
    # Where others have put something into it, it stays for them: that is nothing left of ours either.
    theirs, _ = apply(after, [Want(("runtimes", "theirs", "path"), "/t")], Syntax.JSON, name="/d.json")
    back, left = undo(theirs, edits, Syntax.JSON, name="/d.json")
    assert (parse(back, Syntax.JSON, name="/d.json"), left) == (
        {"runtimes": {"theirs": {"path": "/t"}}},
        (),
    )
