import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from installer.change.ledger import dumps, loads
from installer.config_text import Edit, Syntax
from installer.engines import ENGINES
from installer.model.facts import (
    ADOPTED,
    OWNER,
    STAND_IN,
    CdiRow,
    ConfigRow,
    DeviceNode,
    EngineRow,
    Record,
    Saved,
    ToolkitRow,
)
from tests.support.site import LEDGER

# What the kernel takes for a name, UTF-8 or not.
NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in {b".", b".."}
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(
    lambda names: PurePosixPath(os.fsdecode(b"/" + b"/".join(names)))
)
DIGESTS = st.binary(min_size=4, max_size=4).map(bytes.hex)
VERSIONS = DIGESTS | st.sampled_from([STAND_IN, ADOPTED])
NUMBERS = st.none() | st.integers(0, 2**32 - 1)
ENGINE_NAMES = st.sampled_from([*ENGINES])


def draw(kind: type[Any], **known: st.SearchStrategy[Any]) -> None:
    """Draw rows of a kind: each field that is not ``known`` by its type, so that none is forgotten."""
    drawn = {field.name: values_of(field.type) for field in fields(kind)}
    st.register_type_strategy(kind, st.builds(kind, **(drawn | known)))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    match get_args(kind):
        case (of, end) if end is ...:
            return st.lists(st.from_type(of), max_size=2).map(tuple)
    return st.from_type(kind)


st.register_type_strategy(PurePosixPath, PATHS)
draw(
    Saved,
    digest=DIGESTS,
    mode=st.integers(0, 0o7777).map("{:04o}".format),
    uid=NUMBERS,
    gid=NUMBERS,
    xattrs=st.dictionaries(st.text(), st.binary()),
)
draw(ConfigRow, engine=ENGINE_NAMES | st.just(OWNER))
draw(EngineRow, name=ENGINE_NAMES, runtimes=st.dictionaries(st.text(), PATHS))
draw(ToolkitRow, version=VERSIONS, previous=st.none() | VERSIONS, files=st.dictionaries(st.text(), st.text()))
draw(CdiRow, engines=st.lists(ENGINE_NAMES, max_size=3).map(tuple))
NODES = st.dictionaries(PATHS, st.text(), max_size=3)
draw(Record, nodes=NODES.map(lambda born: tuple(DeviceNode(*each) for each in born.items())))


@given(st.from_type(Record))
def test_whatever_is_held_is_read_back_as_it_was(held: Record) -> None:
    assert loads(dumps(held)) == held


OLD = Path(__file__).parents[1] / "golden/ledgers"


@pytest.mark.parametrize("ledger", sorted(path.name for path in OLD.iterdir()))
def test_what_an_old_ledger_says_can_be_said_in_the_present_format(ledger: str) -> None:
    held = loads((OLD / ledger / "node" / LEDGER).read_bytes())

    assert loads(dumps(held)) == held


@pytest.mark.parametrize("name", ["mode", "original", "former", "files", "version", "meta", "engines"])
def test_a_runtime_may_be_called_as_a_field_of_the_ledger_is(name: str) -> None:
    engine = EngineRow("docker", PurePosixPath("/s"), "docker.service", {name: PurePosixPath("/r")})
    toolkit = ToolkitRow("1", None, "", files={name: "x"})

    held = Record(engines=(engine,), toolkit=toolkit)

    assert loads(dumps(held)) == held


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda rows: rows, id="the ledger"),
        pytest.param(lambda rows: rows["toolkit"], id="the toolkit"),
        pytest.param(lambda rows: rows["engines"][0], id="an engine"),
        pytest.param(lambda rows: rows["configs"][0], id="a config"),
        pytest.param(lambda rows: rows["configs"][0]["original"], id="a saved copy"),
        pytest.param(lambda rows: rows["configs"][0]["edits"][0], id="an edit"),
    ],
)
def test_a_field_of_a_later_version_is_refused_wherever_it_stands(spoil: Callable[[Any], Any]) -> None:
    engine = EngineRow("docker", PurePosixPath("/s"), "docker.service", {})
    edit = Edit(("a",), None, "1")
    config = ConfigRow(
        "docker", PurePosixPath("/c"), Syntax.JSON, Saved("d", "0644", None, None, {}), (), (edit,)
    )
    held = Record(engines=(engine,), toolkit=ToolkitRow("1", None, ""), configs=(config,))
    rows = json.loads(dumps(held))
    spoil(rows)["later"] = True

    with pytest.raises(ValueError, match="later"):
        loads(json.dumps(rows).encode())
