import pytest
from msgspec.structs import replace

from installer.config_text import Edit, json, toml
from installer.config_text.change import Draft
from installer.config_text.grammar import Grammar
from installer.errors import InstallerError


@pytest.mark.parametrize(
    ("grammar", "text", "wrong"),
    [
        pytest.param(toml.GRAMMAR, "a = nan\n", "a = inf\nours = 1\n", id="another value changed"),
        pytest.param(toml.GRAMMAR, "a = 1\n", "a = 1.0\nours = 1\n", id="another type"),
        pytest.param(toml.GRAMMAR, "a = true\n", "a = 1\nours = 1\n", id="true is not one"),
        pytest.param(toml.GRAMMAR, "[a]\n[b]\n", "ours = 1\n[a]\n", id="an empty table lost"),
        pytest.param(toml.GRAMMAR, "[a]\nb = 1\n", "[a]\nb = 1\nours = 1\n", id="our key elsewhere"),
        pytest.param(toml.GRAMMAR, "a = 1\n", "a = 1\nours = \n", id="not TOML any more"),
        pytest.param(json.GRAMMAR, '{"a": 1.0}', '{"a": 1.00, "ours": 1}', id="a number written otherwise"),
        pytest.param(json.GRAMMAR, '{"a": 1, "a": 1}', '{"a": 1, "ours": 1}', id="a doubled name lost"),
        pytest.param(json.GRAMMAR, '{"a": 1}', '{"a": 1, "ours": 1, "ours": 1}', id="our name doubled"),
        pytest.param(json.GRAMMAR, '{"a": 1}', '{"a": 1, "ours": 2}', id="not our value"),
    ],
)
def test_a_text_that_differs_in_anything_else_is_not_let_out(grammar: Grammar, text: str, wrong: str) -> None:
    broken = replace(grammar, insert=lambda _text, _key, _literal: wrong)
    draft = Draft.of(text, broken, "/etc/config")
    draft.insert(("ours",), "1")

    with pytest.raises(InstallerError, match="edit /etc/config without touching anything else") as caught:
        draft.finished([])

    assert "report this as a bug" in caught.value.remedy


def test_an_object_does_not_vanish_with_its_last_key() -> None:
    broken = replace(json.GRAMMAR, remove=lambda _text, _key: "{}")
    draft = Draft.of('{"a": {"ours": 1}}', broken, "/etc/config")
    draft.remove(("a", "ours"))

    with pytest.raises(InstallerError, match="without touching anything else"):
        draft.finished([Edit(("a", "ours"), None, "1")])
