import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from installer.change.ledger import dumps, loads
from installer.config_text import Edit, Syntax
from installer.engines import ENGINES as KNOWN_ENGINES
from installer.model.files import Meta
from installer.model.record import (
    OWNER,
    CdiRow,
    ConfigRow,
    DeviceNode,
    EngineRow,
    Failure,
    Record,
    Saved,
    ToolkitRow,
)
from installer.payload.plan import ADOPTED, STAND_IN
from tests.support.site import LEDGER

# What the kernel takes for a name, UTF-8 or not.
NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in {b".", b".."}
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(
    lambda names: PurePosixPath(os.fsdecode(b"/" + b"/".join(names)))
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
DIGESTS = st.binary(min_size=4, max_size=4).map(bytes.hex)
NUMBERS = st.none() | st.integers(0, 2**32 - 1)
METAS = st.builds(
    Meta,
    st.integers(0, 0o7777),
    NUMBERS,
    NUMBERS,
    st.dictionaries(TEXTS, st.binary()).map(lambda xattrs: tuple(xattrs.items())),
)
EDITS = st.builds(
    Edit, st.lists(TEXTS).map(tuple), st.none() | TEXTS, st.none() | TEXTS, member=st.booleans()
)
ENGINE_NAMES = st.sampled_from([*KNOWN_ENGINES, OWNER])
CONFIGS = st.builds(
    ConfigRow,
    ENGINE_NAMES,
    PATHS,
    st.none() | st.sampled_from(Syntax),
    st.none() | st.builds(Saved, DIGESTS, METAS),
    st.lists(DIGESTS, max_size=3).map(tuple),
    st.lists(EDITS, max_size=3).map(tuple),
    st.none() | PATHS,
    st.none() | st.lists(TEXTS, max_size=2).map(tuple),
)
ENGINES = st.builds(
    EngineRow,
    st.sampled_from([*KNOWN_ENGINES]),
    PATHS,
    TEXTS,
    st.dictionaries(TEXTS, PATHS).map(lambda named: tuple(named.items())),
    st.none() | PATHS,
    TEXTS,
    st.none() | PATHS,
    TEXTS,
    st.none() | st.lists(st.integers(0, 99), max_size=3).map(tuple),
    restart_due=st.booleans(),
    proven=TEXTS,
)
VERSIONS = DIGESTS | st.sampled_from([STAND_IN, ADOPTED])
TOOLKITS = st.builds(
    ToolkitRow,
    VERSIONS,
    st.none() | VERSIONS,
    TEXTS,
    replaced=st.booleans(),
    linked=st.none() | TEXTS,
    files=st.dictionaries(TEXTS, TEXTS).map(lambda files: tuple(files.items())),
)
RECORDS = st.builds(
    Record,
    st.lists(PATHS, max_size=3).map(tuple),
    st.none() | TOOLKITS,
    st.lists(ENGINES, max_size=2).map(tuple),
    st.lists(CONFIGS, max_size=2).map(tuple),
    finished=st.booleans(),
    failed=st.none() | st.builds(Failure, DIGESTS, TEXTS),
    nodes=st.dictionaries(PATHS, TEXTS).map(lambda born: tuple(DeviceNode(*node) for node in born.items())),
    pid_file=st.none() | PATHS,
    left=TEXTS,
    published=st.lists(PATHS, max_size=2).map(tuple),
    cdi=st.none() | st.builds(CdiRow, st.lists(st.sampled_from([*KNOWN_ENGINES])).map(tuple), TEXTS),
    nri=st.none() | PATHS,
)


@pytest.mark.parametrize(
    "rows", [RECORDS, TOOLKITS, ENGINES, CONFIGS, METAS, EDITS], ids=lambda rows: str(rows)[:40]
)
def test_each_field_of_a_row_is_drawn_and_so_read_back(rows: st.SearchStrategy[Any]) -> None:
    drawn: dict[str, set[str]] = {}

    @settings(max_examples=200, database=None, derandomize=True)
    @given(rows)
    def draw(row: Any) -> None:
        for field in fields(row):
            drawn.setdefault(field.name, set()).add(repr(getattr(row, field.name)))

    draw()

    assert [name for name, values in drawn.items() if len(values) == 1] == []


@given(RECORDS)
def test_whatever_is_held_is_read_back_as_it_was(held: Record) -> None:
    assert loads(dumps(held)) == held


OLD = Path(__file__).parents[1] / "golden/ledgers"


@pytest.mark.parametrize("ledger", sorted(path.name for path in OLD.iterdir()))
def test_what_an_old_ledger_says_can_be_said_in_the_present_format(ledger: str) -> None:
    held = loads((OLD / ledger / "node" / LEDGER).read_bytes())

    assert loads(dumps(held)) == held


@pytest.mark.parametrize("name", ["mode", "original", "former", "files", "version", "meta", "engines"])
def test_a_runtime_may_be_called_as_a_field_of_the_ledger_is(name: str) -> None:
    engine = EngineRow("docker", PurePosixPath("/s"), "docker.service", ((name, PurePosixPath("/r")),))
    toolkit = ToolkitRow("1", None, "", files=((name, "x"),))

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
    engine = EngineRow("docker", PurePosixPath("/s"), "docker.service", ())
    edit = Edit(("a",), None, "1")
    config = ConfigRow("docker", PurePosixPath("/c"), Syntax.JSON, Saved("d", Meta()), (), (edit,))
    held = Record(engines=(engine,), toolkit=ToolkitRow("1", None, ""), configs=(config,))
    rows = json.loads(dumps(held))
    spoil(rows)["later"] = True

    with pytest.raises(ValueError, match="later"):
        loads(json.dumps(rows).encode())
