"""Four floors: a module imports its own floor and those below, never above."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.decide.engines import ENGINES

PACKAGE = Path(__file__).parent.parent / "installer"
FLOORS = {"watch": 0, "decide": 0, "host": 1, "record": 2}
TOP = 3
EFFECTS = frozenset({"os", "shutil", "subprocess", "tempfile", "socket", "time", "datetime", "fcntl"})

MAP = (PACKAGE.parent / "CONTRIBUTING.md").read_text().partition("```text")[2].partition("```")[0]
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
def test_record_reaches_the_host_through_installer_host_only(path: Path) -> None:
    roots = {name.split(".")[0] for name in _imports(path)}

    assert roots & {"os", "shutil", "subprocess", "tempfile", "socket", "fcntl"} == set()


# Packages whose modules are told apart by what they hold, as their line says.
WHOLE = {"edits", "doctor", "examine"}


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.parent.name not in WHOLE and path.stem[0] != "_"], ids=_name
)
def test_a_module_stands_in_the_map_of_the_house(path: Path) -> None:
    assert re.search(rf"(?<![\w.]){path.name}", MAP)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_file_has_five_hundred_lines_at_most(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def _compared(tree: ast.AST) -> Iterator[str]:
    """Yield the engines that a module asks for by name, be it by ==, by ``in`` or in a match."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            words = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            words = [node.value]
        else:
            continue
        inner = [each for word in words for each in ast.walk(word)]
        yield from (
            str(each.value) for each in inner if isinstance(each, ast.Constant) and each.value in ENGINES
        )


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.parent != PACKAGE / "decide/engines"], ids=_name
)
def test_no_module_asks_which_engine_it_is(path: Path) -> None:
    assert list(_compared(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param('a == "docker"', ["docker"], id="by equality"),
        pytest.param('if x.name not in {"crio", "b"}: pass', ["crio"], id="in a set"),
        pytest.param('match a:\n    case "k3s": pass', ["k3s"], id="in a match"),
        pytest.param('a = {"docker": 1}', [], id="data is no question"),
    ],
)
def test_a_question_for_an_engine_by_name_is_seen(text: str, names: list[str]) -> None:
    assert list(_compared(ast.parse(text))) == names


# What is filled as it goes, each in one function or one module.
CHANGING = {"_Open", "Draft", "Opens"}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_data_is_frozen_and_takes_no_field_that_it_does_not_name(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            made = [each for each in node.decorator_list if "dataclass" in ast.unparse(each)]
            frozen = "" if node.name in CHANGING else "frozen=True, "
            assert [ast.unparse(each) for each in made] in ([], [f"dataclass({frozen}slots=True)"]), node.name


def test_each_package_is_in_the_wheel() -> None:
    listed = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]

    found = sorted(
        ".".join(file.parent.relative_to(PACKAGE.parent).parts) for file in PACKAGE.rglob("__init__.py")
    )
    assert found == sorted(listed)


def _written_out(function: ast.FunctionDef) -> int:
    """Return the lines of a function, a list, a dictionary or the fields of a value counted as one."""
    lines = set(range(function.lineno, (function.end_lineno or 0) + 1))
    for node in ast.walk(function):
        data = isinstance(node, ast.Dict | ast.List | ast.Tuple) or (
            isinstance(node, ast.Call) and not node.args and len(node.keywords) > 1
        )
        if data and isinstance(node, ast.expr):
            lines -= set(range(node.lineno + 1, (node.end_lineno or 0) + 1))
    return len(lines)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_function_has_forty_lines_at_most_but_for_data(path: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]

    assert [each.name for each in functions if _written_out(each) > 40] == []
