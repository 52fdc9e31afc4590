"""Four floors: a module imports its own floor and those below, never above."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "installer"
FLOORS = {"decide": 0, "host": 1, "record": 2}
TOP = 3
EFFECTS = frozenset({"os", "shutil", "subprocess", "tempfile", "socket", "time", "datetime", "fcntl"})

MODULES = sorted(PACKAGE.rglob("*.py"))


def _floor(name: str) -> int:
    part = name.split(".")[1] if "." in name else ""
    return FLOORS.get(part, TOP)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _name(path: Path) -> str:
    return ".".join(("installer", *path.relative_to(PACKAGE).with_suffix("").parts))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_imports_nothing_from_a_floor_above(path: Path) -> None:
    own = [name for name in _imports(path) if name.startswith("installer.")]

    above = [name for name in own if _floor(name) > _floor(_name(path))]

    assert above == []


@pytest.mark.parametrize("path", [path for path in MODULES if "decide" in path.parts], ids=_name)
def test_decisions_import_nothing_that_has_an_effect_or_a_clock(path: Path) -> None:
    roots = {name.split(".")[0] for name in _imports(path)}

    assert roots & EFFECTS == set()


@pytest.mark.parametrize("path", [path for path in MODULES if "record" in path.parts], ids=_name)
def test_memory_reaches_the_host_through_its_hands_only(path: Path) -> None:
    roots = {name.split(".")[0] for name in _imports(path)}

    assert roots & {"os", "shutil", "subprocess", "tempfile", "socket", "fcntl"} == set()


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_file_stays_under_three_hundred_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300
