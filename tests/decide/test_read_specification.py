"""What is made of a specification of somebody else: exactly what engines make of it."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from installer.decide.inode import File, Meta
from installer.decide.read_specification import has_devices
from installer.decide.read_yaml import read_yaml
from installer.record.texts import text_of
from tests.support.specifications import FLOW, JSON, READ, UNREAD, YAML

KIND = "nvidia.com/gpu"
HIGHEST = (1, 0, 0)  # of containerd 2.1.9
DEEPER = YAML.replace(KIND, "foo.com/gpu") + f"annotations:\n  kind: {KIND}\n"


def _has(text: str | bytes) -> bool:
    content = text.encode() if isinstance(text, str) else text
    return has_devices(text_of(File(content, Meta())), KIND, HIGHEST)


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_what_containerd_reads_gives_devices(text: str | bytes) -> None:
    assert _has(text)


@pytest.mark.parametrize("text", UNREAD.values(), ids=UNREAD)
def test_what_containerd_does_not_read_gives_nobody_a_device(text: str | bytes) -> None:
    assert not _has(text)


LATER = "0.6.0"  # has annotations


@pytest.mark.parametrize(
    ("text", "has"),
    [
        pytest.param("".join(f"# {line}\n" for line in YAML.splitlines()), False, id="comments alone"),
        pytest.param(DEEPER.replace("0.5.0", LATER), False, id="the kind of a deeper table"),
        pytest.param(YAML.replace(KIND, "management.nvidia.com/gpu"), False, id="management's"),
        pytest.param(YAML.replace(KIND, f"k8s.device-plugin.{KIND}"), False, id="the device plugin's"),
        pytest.param(JSON.replace(KIND, "a.b/c"), False, id="another kind"),
        pytest.param(YAML.replace("0.5.0", "9.9.0"), False, id="a version that nobody reads"),
        pytest.param(YAML.partition("\n")[2], False, id="no version"),
        pytest.param("", False, id="empty"),
        pytest.param("null", False, id="nothing"),
        pytest.param(f"{KIND} {'[' * 100_000}", False, id="too deep"),
        pytest.param(f"{KIND}: {'x' * 100_000}", False, id="long"),
        pytest.param(
            f"annotations: {{a: &k {KIND}}}\n{YAML.replace(KIND, '*k')}".replace("0.5.0", LATER),
            True,
            id="by an alias",
        ),
        pytest.param(f"{YAML}---\n{YAML.replace(KIND, 'a.b/c')}", True, id="the first of two documents"),
        pytest.param(
            f"{YAML.replace(KIND, 'a.b/c')}---\n{YAML}", False, id="the second of two, which nobody reads"
        ),
        pytest.param(
            f"{YAML}annotations: {{kind: b.c/d}}\n".replace("0.5.0", LATER), True, id="other braces"
        ),
        pytest.param(FLOW.replace("[{", "[\n#\n{"), True, id="braces over lines"),
    ],
)
def test_only_what_an_engine_reads_gives_devices_of_a_kind(text: str, *, has: bool) -> None:
    assert _has(text) is has


def test_what_an_engine_of_a_later_time_may_know_has_devices() -> None:
    text = YAML.replace("0.5.0", "9.9.0") + "later: 1\n"

    assert has_devices(text, KIND)


_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=20)
_TREES = st.recursive(
    _TEXTS
    | st.sampled_from(["a: b", 'it\'s # "none"', "{[,]}: *a &b !c", "- x", "? y", "|", "x\n\n y\n", ""]),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(_TEXTS, each, max_size=4),
    max_leaves=12,
)


@given(
    data=st.dictionaries(_TEXTS, _TREES, min_size=1, max_size=4),
    style=st.sampled_from([None, True, False]),
    width=st.sampled_from([20, 1000]),
    letters=st.booleans(),
)
def test_whatever_a_library_makes_of_data_is_read_as_it_was(
    data: dict[str, Any], *, style: bool | None, width: int, letters: bool
) -> None:
    text = yaml.safe_dump(data, default_flow_style=style, width=width, allow_unicode=letters)

    assert read_yaml(text) == data


@given(
    st.lists(
        st.sampled_from([*"{}[],:-?!&*|>'\"#% \n\ta", "a: ", "\n- ", "\n  ", ": b", "---\n"]), max_size=14
    )
)
def test_marks_in_any_order_are_refused_or_read_as_by_a_library_with_the_same_rules(
    words: list[str],
) -> None:
    text = "".join(words)
    try:
        mine = read_yaml(text)
    except ValueError:
        mine = ValueError
    try:
        theirs = next(iter(yaml.load_all(text, yaml.BaseLoader)), None)
    except (yaml.YAMLError, ValueError):
        theirs = ValueError

    # Only tables matter: engines read no other document.
    if isinstance(mine, dict) and isinstance(theirs, dict):
        assert json.dumps(mine).replace("null", '""') == json.dumps(theirs), text
