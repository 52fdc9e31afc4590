from collections.abc import Sequence
from typing import Any

import pytest

from installer.config_text import ABSENT, Edit, Syntax, Want
from installer.config_text.change import apply, parse, undo
from installer.errors import InstallerError

NAME = "/etc/containerd/config.toml"
CRI = ("plugins", "io.containerd.grpc.v1.cri", "containerd")
DEFAULT = Want((*CRI, "default_runtime_name"), "nvidia")
TYPE = Want((*CRI, "runtimes", "nvidia", "runtime_type"), "io")
BINARY = Want((*CRI, "runtimes", "nvidia", "options", "BinaryName"), "/x")
VERSION = Want(("version",), 2)
IMPORT = Want(("imports",), "/ours", member=True)
KEY = Want(("a", "ours"), 1)
DEEP = Want(("a", "b", "ours"), 1)


def changed(text: str, wants: Sequence[Want]) -> tuple[str, tuple[Edit, ...]]:
    return apply(text, wants, Syntax.TOML, name=NAME)


def undone(text: str, edits: Sequence[Edit]) -> tuple[str, tuple[Edit, ...]]:
    return undo(text, edits, Syntax.TOML, name=NAME)


@pytest.mark.parametrize(
    ("text", "wants", "expected"),
    [
        pytest.param(
            "",
            [VERSION, TYPE, BINARY],
            'version = 2\n\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n'
            'runtime_type = "io"\n\n'
            '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\nBinaryName = "/x"\n',
            id="an empty file",
        ),
        pytest.param(
            "\ufeff\r\n", [VERSION], "\ufeff\r\nversion = 2\r\n", id="a byte order mark and an empty line"
        ),
        pytest.param("[a]", [KEY], "[a]\nours = 1", id="no line end at the end"),
        pytest.param(
            "[a]\r\n  x = 1 # c\r\n\r\n[b]\r\n",
            [KEY],
            "[a]\r\n  x = 1 # c\r\n  ours = 1\r\n\r\n[b]\r\n",
            id="behind the last pair of its table, indented like it",
        ),
        pytest.param(
            '[a]\nx = """\n[b]\n"""\n# about b\n[b]\n',
            [KEY],
            '[a]\nx = """\n[b]\n"""\nours = 1\n# about b\n[b]\n',
            id="a header in a string is none",
        ),
        pytest.param(
            "[a]\nours = 0 # c\n", [KEY], "[a]\nours = 1 # c\n", id="a comment behind a value stays"
        ),
        pytest.param("a = { x = 1 }\n", [KEY], "a = { x = 1, ours = 1 }\n", id="between the braces"),
        pytest.param(
            "a = {}\n", [DEEP], "a = {b = { ours = 1 }}\n", id="a new table between braces is inline"
        ),
        pytest.param(
            "a.x = 1\nz = 2\n[c]\n", [KEY], "a.x = 1\na.ours = 1\nz = 2\n[c]\n", id="beside a dotted name"
        ),
        pytest.param(
            "a.x = 1\na.y = 2", [KEY], "a.x = 1\na.y = 2\na.ours = 1", id="behind the last dotted name"
        ),
        pytest.param(
            "[c]\n  'a' . \"b\".x = 1\n",
            [Want(("c", "a", "b", "d", "e f"), 1)],
            '[c]\n  \'a\' . "b".x = 1\n  \'a\'."b".d."e f" = 1\n',
            id="a sub-table of a dotted name is dotted and quoted alike",
        ),
        pytest.param(
            "[[c]]\nx = 1\n",
            [KEY],
            "[[c]]\nx = 1\n\n[a]\nours = 1\n",
            id="an array of tables does not catch it",
        ),
        pytest.param(
            "[a.b]\nx = 1\n",
            [KEY],
            "[a.b]\nx = 1\n\n[a]\nours = 1\n",
            id="a table that only its sub-table names",
        ),
        pytest.param(
            "[[a.b]]", [KEY], "[[a.b]]\n\n[a]\nours = 1", id="a table that only an array in it names"
        ),
        pytest.param(
            "[[c]]\n[c.a]\nx = 1\n[a]\n",
            [KEY],
            "[[c]]\n[c.a]\nx = 1\n[a]\nours = 1\n",
            id="not the table in an array",
        ),
        pytest.param(
            "[plugins]\n  [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\n"
            "    [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n      x = 1\n",
            [TYPE, BINARY],
            "[plugins]\n  [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\n"
            "    [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n      x = 1\n\n"
            "    [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n"
            '      runtime_type = "io"\n\n'
            "      [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\n"
            '        BinaryName = "/x"\n',
            id="headers are quoted and indented like their siblings",
        ),
        pytest.param("[a]\n", [VERSION], "version = 2\n\n[a]\n", id="a first key above the first header"),
        pytest.param(
            "# licence\n# more\n\n# about a\n[a]\n",
            [VERSION],
            "# licence\n# more\nversion = 2\n\n# about a\n[a]\n",
            id="a first key behind the first comment",
        ),
        pytest.param(
            "x = 1 #\n\n[a]\n", [VERSION], "x = 1 #\nversion = 2\n\n[a]\n", id="behind the other keys"
        ),
        pytest.param("[a]\nours = nan\n", [KEY], "[a]\nours = 1\n", id="not a number gives way"),
        pytest.param("x = 1\n", [Want(("a",), {})], "x = 1\n\n[a]\n", id="an empty table is a header"),
        pytest.param(
            "a.x = 1", [Want(("a", "b"), {})], "a.x = 1\na.b = {}", id="beside a dotted name it is inline"
        ),
        pytest.param(
            "", [Want(("a",), 'é"\\\n\x7f')], 'a = "é\\"\\\\\\n\\u007F"\n', id="only what must be is escaped"
        ),
        pytest.param(
            "",
            [Want(("a",), [True, {"b c": 1.5}])],
            'a = [true, { "b c" = 1.5 }]\n',
            id="lists and tables in them",
        ),
    ],
)
def test_a_want_is_written_where_toml_allows_it_and_undone(
    text: str, wants: list[Want], expected: str
) -> None:
    new, edits = changed(text, wants)

    assert new == expected
    assert changed(new, wants) == (expected, ())
    assert undone(new, edits) == (text, ())


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        pytest.param("[]", '["/ours"]', id="empty"),
        pytest.param("[ ]", '["/ours" ]', id="empty but for a space"),
        pytest.param("[ 'a' ]", "[ 'a', \"/ours\" ]", id="one line"),
        pytest.param("['a',]", "['a', \"/ours\",]", id="one line, comma at the end"),
        pytest.param("[\n]", '[\n  "/ours",\n]', id="empty, open"),
        pytest.param("[\n  # none, yet ]\n]", '[\n  # none, yet ]\n  "/ours",\n]', id="only a comment"),
        pytest.param(
            "[\n\t'a', # c,\n\t'b' # d\n]", "[\n\t'a', # c,\n\t'b', # d\n\t\"/ours\"\n]", id="comments"
        ),
        pytest.param(
            "[\r\n  'a',\r\n]", "[\r\n  'a',\r\n  \"/ours\",\r\n]", id="comma at the end, two characters"
        ),
        pytest.param(
            "[\n  'a' # b, c\n]", "[\n  'a', # b, c\n  \"/ours\"\n]", id="a comma in a comment is none"
        ),
    ],
)
def test_a_member_joins_in_the_style_of_the_array(array: str, expected: str) -> None:
    text = f"imports = {array} # end\n[a]\n"

    new, edits = changed(text, [IMPORT])

    assert new == f"imports = {expected} # end\n[a]\n"
    assert changed(new, [IMPORT]) == (new, ())
    assert undone(new, edits) == (text, ())


@pytest.mark.parametrize(
    ("text", "now", "back"),
    [
        pytest.param(
            "", "imports = ['/b', \"/ours\", '/c']\n", "imports = ['/b', '/c']\n", id="between others"
        ),
        pytest.param(
            "", "imports = ['/ours' , '/c']\n", "imports = ['/c']\n", id="before others, quoted otherwise"
        ),
        pytest.param("", "imports = [\n]\n", "", id="taken out by others"),
        pytest.param("", "imports = ['/c']\n", "imports = ['/c']\n", id="replaced by others"),
        pytest.param(
            "imports = []", "imports = [\n'/ours' # c\n]", "imports = [\n# c\n]", id="with their comment"
        ),
        pytest.param(
            "imports = ['a']",
            "imports = [\n'a', # a\n'/ours'\n]",
            "imports = [\n'a' # a\n]",
            id="the comma and the line go with it",
        ),
        pytest.param(
            "imports = ['a']", "imports = ['/ours',\n'b',]", "imports = [\n'b',]", id="at the head of a list"
        ),
    ],
)
def test_only_our_member_leaves_an_array_that_others_edited(text: str, now: str, back: str) -> None:
    _, edits = changed(text, [IMPORT])

    assert undone(now, edits) == (back, ())


def test_an_array_that_became_tables_is_reported() -> None:
    _, edits = changed("", [IMPORT])

    assert undone("[[imports]]\n", edits) == ("[[imports]]\n", edits)


def test_two_members_are_two_edits() -> None:
    wants = [IMPORT, Want(("imports",), "/more", member=True)]
    new, edits = changed("", wants)

    assert new == 'imports = ["/ours", "/more"]\n'
    assert edits == (
        Edit(("imports",), None, '"/ours"', member=True),
        Edit(("imports",), '["/ours"]', '"/more"', member=True),
    )
    assert undone(new, edits) == ("", ())
    assert undone(new, edits[1:]) == ('imports = ["/ours"]\n', ())
    assert undone(new, edits[:1]) == ('imports = ["/more"]\n', ())


def test_each_created_container_is_an_edit() -> None:
    _, edits = changed("[a]\n", [Want(("a", "b", "c", "d"), 1)])

    assert edits == (
        Edit(("a", "b"), None, "{}"),
        Edit(("a", "b", "c"), None, "{}"),
        Edit(("a", "b", "c", "d"), None, "1"),
    )


def test_a_header_for_a_table_that_was_only_named_is_an_edit_once() -> None:
    _, edits = changed("", [TYPE, DEFAULT])
    _, named = changed("[a.b]\n", [KEY])

    assert [edit.key for edit in edits].count(CRI) == 1
    assert named == (Edit(("a",), None, "{}"), Edit(KEY.key, None, "1"))


@pytest.mark.parametrize(
    ("text", "wants"),
    [
        pytest.param("[a]\nours = 0x1\n", [KEY], id="another spelling of the number"),
        pytest.param("a = { 'ours' = 1 }\n", [KEY], id="inline"),
        pytest.param("a.b.x = 1\n", [Want(("a",), {"b": {"x": 1}})], id="a whole table"),
        pytest.param("imports = ['''/ours''']", [IMPORT], id="a member, quoted otherwise"),
        pytest.param("a = [1]", [Want(("a", "b"), ABSENT), Want(("c",), ABSENT)], id="absent already"),
    ],
)
def test_a_key_that_is_already_right_causes_no_edit(text: str, wants: list[Want]) -> None:
    assert changed(text, wants) == (text, ())


@pytest.mark.parametrize(
    ("text", "key", "without"),
    [
        pytest.param("[a]\nb = 1\nc = 2\n", ("a", "b"), "[a]\nc = 2\n", id="a line"),
        pytest.param("a = { b = 1, c = 2 }\n", ("a", "b"), "a = { c = 2 }\n", id="between braces"),
        pytest.param("x = 1\na.b = 1 # c\n", ("a", "b"), "x = 1\n# c\n", id="dotted, with a comment"),
    ],
)
def test_a_deleted_key_comes_back_with_its_meaning(text: str, key: tuple[str, ...], without: str) -> None:
    new, edits = changed(text, [Want(key, ABSENT)])

    assert new == without
    back, left = undone(new, edits)
    assert left == ()
    assert parse(back, Syntax.TOML, name=NAME) == parse(text, Syntax.TOML, name=NAME)


@pytest.mark.parametrize(
    ("text", "want", "problem"),
    [
        pytest.param("a = 'x'", KEY, "a is a string, but a table belongs there", id="string"),
        pytest.param("[[a]]", KEY, "a is an array of tables, but a table", id="array of tables"),
        pytest.param("a = 1979-05-27", KEY, "a is a date, but a table", id="date"),
        pytest.param("[a.ours]", KEY, "a.ours is a table, but a value belongs there", id="table for a value"),
        pytest.param(
            "[a]\nx = 1", Want(("a",), ABSENT), "a is a table, but a value", id="table to be deleted"
        ),
        pytest.param("[a]\nx = 1", Want(("a",), {}), "a is a table, but a value", id="table to be emptied"),
        pytest.param(
            "imports = 'x'", IMPORT, "imports is a string, but an array belongs there", id="no array"
        ),
        pytest.param(
            "[[imports]]", IMPORT, "imports is a table, but a value belongs there", id="tables, no array"
        ),
        pytest.param(
            "['a.b']\nc = 1", Want(("a.b", "c", "d"), 1), '"a.b".c is a number', id="a name with a dot"
        ),
    ],
)
def test_what_is_in_the_way_is_named(text: str, want: Want, problem: str) -> None:
    with pytest.raises(InstallerError) as caught:
        changed(text, [want])

    assert caught.value.problem.startswith(f"edit {NAME} ({problem}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("a = 1\nb 2\n", "line 2, column 3: expected '=' after a key", id="no equals sign"),
        pytest.param("a = 1\n[a]\n", "line 2, column 3: cannot ", id="defined twice"),
        pytest.param("a = [1", "end of document: unclosed array", id="unclosed"),
        pytest.param("a = '\x00'", "line 1, column 6: found invalid character", id="NUL"),
        pytest.param("a = '\udc80'", "character 6: half a surrogate pair", id="lone surrogate"),
        pytest.param(
            "a = " + "9" * 5000, "a number has more than 4300 digits", id="an integer beyond all bounds"
        ),
        pytest.param("a = " + "[" * 100_000, "nested too deeply", id="too deep"),
        pytest.param("\ufeff\ufeffa = 1", "line 1, column 1: invalid statement", id="two byte order marks"),
    ],
)
def test_invalid_text_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(InstallerError) as caught:
        parse(text, Syntax.TOML, name=NAME)

    assert caught.value.problem.lower().startswith(f"read {NAME} as TOML ({reason}".lower())
    assert caught.value.remedy == "correct the file, then run again"


def test_depth_never_ends_in_a_traceback() -> None:
    for name in ("a." * 5000 + "a = 1\n", f"[{'a.' * 400}a]\n", f"a = {'[' * 200}{']' * 200}\n"):
        try:
            new, edits = changed(name, [VERSION])
        except InstallerError:
            continue
        assert undone(new, edits) == (name, ())


OURS = changed("x = 1\n\n[z]\n", [TYPE, BINARY, DEFAULT])


@pytest.mark.parametrize(
    ("edit", "back", "left"),
    [
        pytest.param({}, "x = 1\n\n[z]\n", [], id="nothing"),
        pytest.param({'"/x"': '"/theirs"'}, None, [BINARY.key], id="a value they changed is reported"),
        pytest.param(
            {'"/x"': '"/x"\ntheirs = 1 # c'},
            'x = 1\n\n[z]\n\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
            "theirs = 1 # c\n",
            [],
            id="a key they added keeps its header",
        ),
        pytest.param(
            {'"/x"': '"/x" # why', "[z]\n": "[z]\n# end of z\n"},
            "x = 1\n\n[z]\n# end of z\n# why\n",
            [],
            id="comments they wrote stay",
        ),
        pytest.param(
            {" = ": "=", "[plugins": "\t[ plugins"}, "x=1\n\n[z]\n", [], id="white space they changed"
        ),
        pytest.param({"\n": "\r\n"}, "x = 1\r\n\r\n[z]\r\n", [], id="line ends they changed"),
        pytest.param({"x = 1\n\n[z]\n": ""}, "\n", [], id="all else taken out"),
    ],
)
def test_undo_removes_only_what_is_still_ours(
    edit: dict[str, str], back: str | None, left: list[tuple[str, ...]]
) -> None:
    now = OURS[0]
    for old, new in edit.items():
        now = now.replace(old, new)

    text, remaining = undone(now, OURS[1])

    assert [edit.key for edit in remaining] == left
    assert back is None or text == back
    assert undone(text, OURS[1]) == (text, remaining)


def test_undo_finds_keys_after_reformatting() -> None:
    theirs = (
        "x = 1\nplugins.\"io.containerd.grpc.v1.cri\".containerd = { default_runtime_name = 'nvidia', "
        'runtimes = { runc = {}, nvidia = { options = { BinaryName = "/x" }, runtime_type = "io" } } }\n[z]\n'
    )

    assert undone(theirs, OURS[1]) == (
        'x = 1\nplugins."io.containerd.grpc.v1.cri".containerd = { runtimes = { runc = {} } }\n[z]\n',
        (),
    )


def test_a_replaced_value_returns_as_it_was_written() -> None:
    text = "[a]\nours = '''\n0''' # c\r\n"
    new, edits = changed(text, [KEY])

    assert undone(new, edits) == (text, ())
    assert undone(text, edits) == (text, ())


def test_a_number_is_copied_as_it_was_written() -> None:
    tree: dict[str, Any] = dict(parse("a = 1.50\nb = -inf\nc = 1_0.0\nd = 7\n", Syntax.TOML, name=NAME))

    new, _ = changed("", [Want((name,), value) for name, value in tree.items()])

    assert new == "a = 1.50\nb = -inf\nc = 1_0.0\nd = 7\n"
