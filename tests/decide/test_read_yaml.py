"""A text in YAML is read as a library with the rules of libyaml reads it, case by case."""

import json
from typing import Any

import pytest
import yaml

from installer.decide.read_yaml import read_yaml

# Each is a text with a name for what is special about it.
TEXTS = {
    "a table": "a: b\nc: d\n",
    "a table in a table": "a:\n  b:\n    c: d\n  e: f\ng: h\n",
    "a list": "- a\n- b\n",
    "a list as deep as its key": "a:\n- b\n- c\nd: e\n",
    "a list deeper": "a:\n  - b\n  - c\nd: e\n",
    "a list of tables": "- a: b\n  c: d\n- e: f\n",
    "a list of lists": "- - a\n  - b\n- - c\n",
    "a list as deep as a list's own mark": "- a\n- - b\n- c\n",
    "an empty item": "-\n- a\n-\n",
    "an empty value, then a key": "a:\nb: c\n",
    "an empty value at the end": "a:\n",
    "an item that is less deep": "a:\n  - b\n - c\n",
    "a key that is less deep": "a:\n    b: c\n  d: e\n",
    "a key that is deeper": "a: b\n  c: d\n",
    "a key deeper than the first": "a: b\n c: d\n",
    "a table behind a word": "a: b: c\n",
    "a list behind a key on its line": "a: - b\n",
    "a word behind a table": "a: b\nc\n",
    "a word in quotes, then another": "a: 'b' c\n",
    "a word in quotes with the other ones": "a: \"it's\"\nb: 'a \"b\"'\nc: 'it''s'\n",
    "words that are escaped": 'a: "\\t\\x41\\u00e9\\U0001F600\\n\\"\\\\"\n',
    "an escaped end of a line": 'a: "b\\\n   c"\n',
    "an unknown escape": 'a: "\\q"\n',
    "a character past the last": 'a: "\\U00110000"\n',
    "quotes that do not end": "a: 'b\n",
    "lines in quotes": "a: 'b\n  c\n\n  d'\n",
    "a key in quotes": "'a b': c\n\"d\": e\n",
    "a word that goes on": "a: b\n  c\n  d\ne: f\n",
    "a word that goes on behind an empty line": "a: b\n\n  c\n",
    "a word that goes on no deeper": "a:\n  b\n  c\n",
    "a word that goes on at the first column": "a: b\nc\n",
    "a word alone on two lines": "a\nb\n",
    "a comment ends a word": "a: b\n  # c\n  d\n",
    "a comment behind a word": "a: b # c\nd: e#f\n",
    "comments alone between": "# x\na: b\n  # y\n# z\nc: d\n",
    "a colon in a word": "a: b:c\nd: ::e\n",
    "an address": "a: http://b:1/c#d\n",
    "a mark in a word": "a: -b\nc: ?d\ne: b-\n",
    "an anchor and its alias": "a: &x b\nc: *x\n",
    "an anchor of a table": "a: &x\n  b: c\nd: *x\n",
    "an anchor of a list": "a: &x\n- b\nd: *x\n",
    "an anchor of a key": "&x a: b\nc: *x\n",
    "an anchor above its table": "a:\n  &x\n  b: c\nd: *x\n",
    "an anchor of nothing": "a: &x\nb: *x\n",
    "an anchor on the line of its table": "a: &x b: c\n",
    "an alias of nothing": "a: *x\n",
    "an alias as a key": "a: &x b\n*x : c\n",
    "an alias, then a word": "a: &x b\nc: *x d\n",
    "a tag": "a: !!str b\nc: !<tag:yaml.org,2002:str> d\ne: ! f\n",
    "a tag above a text": "a: !!str |\n  b\n",
    "an anchor and a tag": "a: &x !!str b\nc: !!str &y d\ne: [*x, *y]\n",
    "two documents": "a: b\n---\nc: d\n",
    "a document behind its mark": "---\na: b\n...\nc: d\n",
    "a word on the line of the mark": "--- a\n",
    "a table on the line of the mark": "--- a: b\n",
    "a text on the line of the mark": "--- |\n a\n",
    "a list on the line of the mark": "--- - a\n",
    "brackets on the line of the mark": "--- {a: b}\n",
    "a mark in a deeper column": "a:\n  ---b\n",
    "a mark in a word that goes on": "a: b\n---\n c\n",
    "a mark in a plain document": "a\n---\nb\n",
    "a directive": "%YAML 1.1\n---\na: b\n",
    "two directives": "%YAML 1.1 # c\n%TAG ! tag:a.b:\n---\na: b\n",
    "a directive without a document": "%YAML 1.1\na: b\n",
    "a directive of another kind": "%YAML 9\n---\na: b\n",
    "a mark without a blank": "---a: b\n",
    "a text in lines": "a: |\n  b\n   c\n\n  d\ne: f\n",
    "a text in lines, folded": "a: >\n  b\n  c\n\n  d\n   e\n  f\ng: h\n",
    "a text whose last line goes": "a: |-\n  b\n\n\nc: d\n",
    "a text whose last lines go to one": "a: |\n  b\n\n\nc: d\n",
    "a text with its depth": "a: |2\n    b\n  c\nd: e\n",
    "a text with depth and end": "a: |2-\n   b\nc: |-2\n   d\n",
    "a text that begins with a comment": "a: | # c\n  b\n",
    "a text that begins with a word": "a: | b\n",
    "a text that ends with the file": "a: |\n  b",
    "a text of nothing": "a: |\nb: c\n",
    "a text of empty lines": "a: |\n\n\nb: c\n",
    "a text less deep than its depth": "a: |4\n  b\n",
    "a text at the first column": "|\n a\n",
    "a text in a list": "- |\n a\n b\n- c\n",
    "a text with empty lines at its head": "a: |\n\n  b\n",
    "a folded text with spaces at its head": "a: >\n\n    b\n\n    c\n",
    "brackets": "a: [b, c]\nd: {e: f, g: h}\n",
    "brackets that hold nothing": "a: []\nb: {}\nc: [ ]\nd: { }\n",
    "brackets in brackets": "a: [[b], {c: [d]}]\n",
    "brackets over lines": "a: [b,\n  c,\n# d\n  e]\nf: g\n",
    "a comma at their end": "a: [b,]\nc: {d: e,}\n",
    "two commas": "a: [b,,c]\n",
    "brackets that do not end": "a: [b\n",
    "brackets that end otherwise": "a: [b}\n",
    "brackets without a comma": "a: ['b' 'c']\n",
    "a word behind brackets": "a: [b] c\n",
    "pairs in a list": "a: [b: c, d]\n",
    "keys without values in brackets": "a: {b, c: , d: e}\n",
    "words with a colon in brackets": "a: {b: c:d}\ne: [f:g]\n",
    "a key in quotes in brackets": "a: {'b':c, \"d\": e}\n",
    "a question in brackets": "a: {? b : c, ? d}\ne: [? f : g, ? h]\n",
    "anchors in brackets": "a: [&x b, *x, &y , *y]\nc: {&z d: !!str e, f: *z }\n",
    "brackets as a table": "{a: b}\n",
    "a key of brackets": "[a]: b\n",
    "a key of a table": "{a: b}: c\n",
    "a word over lines in brackets": "a: [b\n  c]\n",
    "a comment in brackets": "a: [b # c\n  , d]\n",
    "a key that is asked for": "? a\n: b\n? c\n? d\n: - e\n  - f\n",
    "a key that is asked for, deeper": "? a : b\n: c\n",
    "a key of a text": "? |\n  a\n: b\n",
    "a key of two lines": "? a\n  b\n: c\n",
    "no key": ": a\n",
    "a key in quotes that merges nothing": "a:\n  '<<': b\n",
    "a tab before a key": "a:\n\tb: c\n",
    "a tab behind a mark": "-\ta\n",
    "a tab before a table": "-\ta: b\n",
    "ends of lines of other systems": "a: b\r\nc: d\re: f\n",
    "a mark of the order of bytes": "\ufeffa: b\n",
    "a character that no text has": "a: b\x01\n",
    "nothing": "",
    "a comment alone": "# a",
    "a mark alone": "---\n",
    "a word that may not begin": "a: @b\n",
    "a percent sign": "a: %b\n",
    "a word with an ampersand": "a: b&c\n",
    "an ampersand alone": "a: & b\n",
    "no end of the last line": "a:\n  - b: c",
    "a list deeper in a list of tables": "- a:\n  - b\n  c: d\n",
    "a key with blanks before its colon": "a  : b\n",
    "a key without a blank": "a:b\n",
    "an empty line with blanks": "a: b\n   \nc: d\n",
    "a folded line that ends with a blank": "a: >\n  b \n  c\n",
    "a comma that begins": "a: [, b]\nc: d\n",
    "a comma alone in braces": "a: {,}\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_is_read_or_refused_as_by_a_library_with_the_same_rules(text: str) -> None:
    try:
        theirs = next(iter(yaml.load_all(text, yaml.BaseLoader)), None)
    except (yaml.YAMLError, ValueError):
        with pytest.raises(ValueError):  # noqa: PT011 - any of them
            read_yaml(text)
        return
    # That library has a text where nothing stands.
    assert json.dumps(read_yaml(text)).replace("null", '""') == json.dumps(theirs).replace("null", '""')


@pytest.mark.parametrize(
    ("text", "means"),
    [
        pytest.param(
            "[~, null, NULL, Null, 'null', nULL, ]",
            [None, None, None, None, "null", "nULL"],
            id="nothing, in its spellings",
        ),
        pytest.param("[!!str , !!str null, ! ~]", ["", "null", "~"], id="nothing that is told to be a text"),
        pytest.param("a: !!binary aGk=\n", {"a": "hi"}, id="bytes"),
        pytest.param("a: !<tag:yaml.org,2002:binary> 'aGk='\n", {"a": "hi"}, id="bytes, by the whole tag"),
        pytest.param("a: !!str aGk=\n", {"a": "aGk="}, id="letters"),
        pytest.param("a:\tb\nc: \td\n", {"a": "b", "c": "d"}, id="tabs behind keys"),
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
    ],
)
def test_what_a_word_stands_for(text: str, means: Any) -> None:
    assert read_yaml(text) == means


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('a: "\\ud800"\n', id="half a character"),
        pytest.param('a: "\\udfff"\n', id="the other half"),
        pytest.param("a: b\na: c\n", id="the same key twice"),
        pytest.param("{a: b, a: c}\n", id="the same key twice in brackets"),
        pytest.param("a:\n  <<: b\n", id="a word that is merged"),
        pytest.param("a:\n  <<: [{}, b]\n", id="a list with a word that is merged"),
        pytest.param("a: {<<: }\n", id="nothing that is merged"),
        pytest.param("# \ufffd\na: b\n", id="what is no UTF-8, in a comment"),
        pytest.param("~: a\n", id="nothing as a key"),
        pytest.param("[a]: b\n", id="a list as a key"),
    ],
)
def test_what_engines_refuse_besides_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them
        read_yaml(text)
