"""What holds for each file of the program; what may import what is held by import-linter."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from installer.engines import ENGINES

PACKAGE = Path(__file__).parent.parent / "installer"
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def _name(path: Path) -> str:
    return ".".join(("installer", *path.relative_to(PACKAGE).with_suffix("").parts))


def _compared(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the engines that a module asks for by name, be it by ==, by ``in`` or in a match."""
    for node in nodes:
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


def test_no_module_asks_which_engine_it_is() -> None:
    paths = [path for path in MODULES if not path.is_relative_to(PACKAGE / "engines")]

    assert [(_name(path), engine) for path in paths for engine in _compared(_nodes(path))] == []


# What is filled as it goes, each in one function or one module.
CHANGING = {"_Open", "Draft", "Opens"}


def _is_changing(node: ast.AST) -> bool:
    """Tell whether a class of data may change, or take a field that it does not name."""
    if not isinstance(node, ast.ClassDef):
        return False
    made = any("dataclass" in ast.unparse(each) for each in node.decorator_list)  # NamedTuple loads less
    data = any(ast.unparse(each) == "Struct" for each in node.bases)
    unfrozen = data and "frozen=True" not in map(ast.unparse, node.keywords) and node.name not in CHANGING
    return unfrozen or made


def test_data_is_frozen_and_takes_no_field_that_it_does_not_name() -> None:
    changing = [(_name(path), node) for path in MODULES for node in _nodes(path) if _is_changing(node)]

    assert [(name, ast.unparse(node)) for name, node in changing] == []
