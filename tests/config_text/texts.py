"""Strategies for texts that are odd but valid, and for what may be wanted of them."""

import json
import tomllib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from installer.config_text import Edit, Syntax, WantedKey
from installer.config_text.change import apply
from installer.errors import InstallerError

NAMES = ["a", "b", "c", "nvidia", "io.cri", "é b", "ab", ""]
STRINGS = ["", "nvidia", "/usr/bin/x", 'q"\\', "a\tb\nc\r\x7f\x01", "é\U0001f600", "#no", "]}", "'"]
SCALARS = st.one_of(st.booleans(), st.integers(), st.sampled_from(STRINGS), st.sampled_from([0.5, -1.0]))
VALUES: st.SearchStrategy[Any] = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.just({}))
KEYS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(tuple)
SPACE = st.sampled_from(["", "", " ", "\t", "  "])
BOMS = st.sampled_from(["", "", "", "\ufeff"])

# JSON

INDENTS: list[str | int] = [2, 4, "\t"]

JSON_LEAVES = st.sampled_from(
    [
        *["null", "true", "false", "0", "-0", "1.0", "1E+2", "1e999"],
        *("9" * 40, "9" * 1200),
        *[r'""', r'"a,b"', r'"}{]"', r'"\"\\\/\b\f\n\r\t"', r'"\u00e9\ud83d\ude00"', r'"é😀"', r'"\u0000"'],
        *("[]", "{}", "[1, {}, [null]]", "{ }", "{\n}", "[\r\n]", '[ {"a" : 1},\n\t{"a": [] } ]'),
    ]
)


def json_name(name: str) -> st.SearchStrategy[str]:
    escaped = "".join(f"\\u{ord(c):04x}" for c in name)
    return st.sampled_from([json.dumps(name), json.dumps(name, ensure_ascii=False), f'"{escaped}"'])


@st.composite
def json_objects(draw: st.DrawFn, spaces: st.SearchStrategy[str], depth: int = 3) -> str:
    members = []
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=draw(st.integers(0, 9)) > 0)):
        deeper = depth > 0 and draw(st.booleans())
        value = draw(json_objects(spaces, depth - 1)) if deeper else draw(JSON_LEAVES)
        members.append(
            f"{draw(spaces)}{draw(json_name(name))}{draw(spaces)}:{draw(spaces)}{value}{draw(spaces)}"
        )
    return "{" + (",".join(members) or draw(spaces)) + "}"


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    spaces = draw(
        st.sampled_from([st.just(""), SPACE, st.sampled_from(["", " ", "\n", "\r\n\t", "\n\n  ", "\t"])])
    )
    text = draw(st.one_of(json_objects(spaces), json_objects(spaces), st.just("")))
    if text and draw(st.booleans()):
        tree, indent = json.loads(text, parse_float=lambda _: 2.5), draw(st.sampled_from(INDENTS))
        eol = draw(st.sampled_from(["\n", "\r\n"]))
        text = json.dumps(tree, indent=indent, ensure_ascii=False).replace("\n", eol)
    return draw(BOMS) + draw(SPACE) + text + draw(st.sampled_from(["", "\n", "\r\n", " \n\n", "\t"]))


# TOML

TOML_NUMBERS = ["1", "-0", "+7", "0xDEAD_beef", "0o17", "1_000", "1.50", "-0.0", "1e6", "nan", "-inf"]
TOML_DATES = ["1979-05-27T07:32:00Z", "1979-05-27 07:32:00.5+01:00", "1979-05-27", "07:32:00"]
TOML_STRINGS = [
    *('""', "''", '"a # b"', '"[x]\\n\\"\\u00e9"', "'C:\\n'", '"é\U0001f600"', '"= {a = 1}"', '"\\\\"'),
    *(
        '"""a"""',
        '"""\n[x]\na = 1\n"""',
        '""""q"" \\""""""',
        '"""a\\\n   b"""',
        "'''\n# no\n'''",
        "''''q'''''",
    ),
]
TOML_ARRAYS = [
    *("[]", "[ ]", "[1, 2]", "[1,2,]", "[\n]", "[\n  # none\n]", "[ # c, d\n 1 # x, y\n , 2 ]", "[[], [1]]"),
    *("[\n  'a', # a ]\n]", "[\n  'a',\n  'b' # last\n]", "[{a = 1}, { b = [2] }]", "[\n\t'a'\n\t,'b',\n]"),
]
TOML_TABLES = [
    "{}",
    "{ }",
    "{a = 1}",
    "{ a.b = 1, c = {} }",
    "{ b = { c = 'x' }, nvidia = [1] }",
    "{'io.cri' = {a=1}}",
]
TOML_LEAVES = st.sampled_from(
    [*TOML_NUMBERS, "9" * 40, "true", "false", *TOML_DATES, *TOML_STRINGS, *TOML_ARRAYS, *TOML_TABLES]
)


def toml_name(name: str) -> st.SearchStrategy[str]:
    bare = [name, name, name] if name.isascii() and name.isalnum() else []
    escaped = "".join(f"\\u{ord(c):04X}" for c in name)
    return st.sampled_from([*bare, f'"{name}"', f"'{name}'", f'"{escaped}"'])


@st.composite
def toml_dotted(draw: st.DrawFn, max_size: int) -> str:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=max_size))
    dot = draw(st.sampled_from([".", ".", " . "]))
    return dot.join(draw(toml_name(name)) for name in names)


COMMENTS = st.sampled_from(["", "", "", " ", "# c", " # [x] = \"'", "\t#"])


@st.composite
def toml_chunks(draw: st.DrawFn) -> str:
    kind = draw(st.integers(0, 9))
    indent = draw(SPACE)
    if kind == 0:
        return draw(st.sampled_from(["", "  ", "# comment", "  # a = 1", "#"]))
    if kind <= 3:
        header = f"{draw(SPACE)}{draw(toml_dotted(4))}{draw(SPACE)}"
        return f"{indent}[{header}]{draw(COMMENTS)}" if kind > 1 else f"{indent}[[{header}]]{draw(COMMENTS)}"
    equals = draw(st.sampled_from([" = ", "=", " =\t"]))
    return f"{indent}{draw(toml_dotted(2))}{equals}{draw(TOML_LEAVES)}{draw(COMMENTS)}"


@st.composite
def toml_texts(draw: st.DrawFn) -> str:
    text, eols = "", draw(st.sampled_from([["\n"], ["\n"], ["\r\n"], ["\n", "\r\n"]]))
    for chunk in draw(st.lists(toml_chunks(), max_size=9)):
        more = f"{text}{chunk}\n".replace("\r\n", "\n").replace("\n", draw(st.sampled_from(eols)))
        text = more if is_toml(more) else text
    cut = text.removesuffix("\n").removesuffix("\r") if draw(st.integers(0, 3)) == 0 else text
    return draw(BOMS) + (cut if is_toml(cut) else text)


def is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


# Wants


@st.composite
def cases(draw: st.DrawFn, syntax: Syntax) -> tuple[str, list[WantedKey], tuple[str, tuple[Edit, ...]]]:
    """A text, wants that it can fulfil, and the text and the edits that come of it."""
    text = draw(json_texts() if syntax is Syntax.JSON else toml_texts())
    wants: list[WantedKey] = []
    done: tuple[str, tuple[Edit, ...]] = text, ()
    drawn = draw(st.lists(st.builds(WantedKey, KEYS, VALUES), min_size=1, max_size=5))
    if syntax is Syntax.TOML:
        drawn += draw(st.lists(st.builds(WantedKey, KEYS, SCALARS, st.just(True)), max_size=2))
    for want in drawn:
        keys = sorted(each.key for each in (*wants, want))
        if all(b[: len(a)] != a for a, b in pairwise(keys)):
            try:
                done = apply(text, [*wants, want], syntax, name="config")
            except InstallerError as error:
                # A refusal is an answer; a draft that would have gone wrong is a bug.
                if not error.problem.startswith("edit config ("):
                    raise AssertionError(text, [*wants, want]) from error
            else:
                wants.append(want)
    return text, wants, done


def edited(tree: Any, change: Callable[[Any], Any], key: tuple[str, ...]) -> Any:
    """The tree with ``change`` made to what ``key`` holds, containers created on the way."""
    if not key:
        return change(tree)
    branch = dict(tree or {})
    branch[key[0]] = edited(branch.get(key[0]), change, key[1:])
    return branch
