from types import SimpleNamespace
from typing import Any, cast

import pytest

from installer.config_text import Edit, Key, Syntax, json, toml
from installer.config_text.change import finish, open_draft
from installer.errors import InstallerError

OURS = ("ours",)


def change(text: str, syntax: Syntax, wrong: str, key: Key, literal: str | None) -> None:
    """Change one key with a grammar that makes ``wrong`` of every text."""
    with open_draft(text, syntax, "/etc/config") as draft:
        grammar: dict[str, Any] = vars(toml if syntax is Syntax.TOML else json)
        spoilt = {**grammar, "insert": lambda *_: wrong, "remove": lambda *_: wrong}
        draft.grammar = cast("Any", SimpleNamespace(**spoilt))
        if literal is None:
            draft.replace(key, None)
        else:
            draft.insert(key, literal)
        finish(draft, text, [Edit(key, None, "1")] if literal is None else [])


@pytest.mark.parametrize(
    ("syntax", "text", "wrong"),
    [
        pytest.param(Syntax.TOML, "a = nan\n", "a = inf\nours = 1\n", id="another value changed"),
        pytest.param(Syntax.TOML, "a = 1\n", "a = 1.0\nours = 1\n", id="another type"),
        pytest.param(Syntax.TOML, "a = true\n", "a = 1\nours = 1\n", id="true is not one"),
        pytest.param(Syntax.TOML, "[a]\n[b]\n", "ours = 1\n[a]\n", id="an empty table lost"),
        pytest.param(Syntax.TOML, "[a]\nb = 1\n", "[a]\nb = 1\nours = 1\n", id="our key elsewhere"),
        pytest.param(Syntax.TOML, "a = 1\n", "a = 1\nours = \n", id="not TOML any more"),
        pytest.param(Syntax.JSON, '{"a": 1.0}', '{"a": 1.00, "ours": 1}', id="a number written otherwise"),
        pytest.param(Syntax.JSON, '{"a": 1, "a": 1}', '{"a": 1, "ours": 1}', id="a doubled name lost"),
        pytest.param(Syntax.JSON, '{"a": 1}', '{"a": 1, "ours": 1, "ours": 1}', id="our name doubled"),
        pytest.param(Syntax.JSON, '{"a": 1}', '{"a": 1, "ours": 2}', id="not our value"),
    ],
)
def test_a_text_that_differs_in_anything_else_is_not_let_out(syntax: Syntax, text: str, wrong: str) -> None:
    with pytest.raises(InstallerError, match="edit /etc/config without touching anything else") as caught:
        change(text, syntax, wrong, OURS, "1")

    assert "report this as a bug" in caught.value.remedy


def test_an_object_does_not_vanish_with_its_last_key() -> None:
    with pytest.raises(InstallerError, match="without touching anything else"):
        change('{"a": {"ours": 1}}', Syntax.JSON, "{}", ("a", *OURS), None)
