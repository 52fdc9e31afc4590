"""What holds for each file of the program; what may import what is held by import-linter."""

import ast
import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from installer.engines import ENGINES

PACKAGE = Path(__file__).parent.parent / "installer"
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def _name(path: Path) -> str:
    return ".".join(("installer", *path.relative_to(PACKAGE).with_suffix("").parts))


def test_a_file_has_five_hundred_lines_at_most() -> None:
    assert [_name(path) for path in MODULES if len(path.read_text().splitlines()) > 500] == []


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


def test_a_function_has_sixty_lines_at_most_but_for_data() -> None:
    long = [
        (_name(path), node.name)
        for path in MODULES
        for node in _nodes(path)
        if isinstance(node, ast.FunctionDef) and _written_out(node) > 60
    ]

    assert long == []


# Of these the usual case is the true one; the two of the toolkit's config are so in NVIDIA's own.
TRUE = {
    "EffectiveConfig.live_restore",
    "EffectiveConfig.ready",
    "Entry.owned",
    "Node.sees_host",
    "ToolkitConfig.accept_envvar_when_unprivileged",
    "ToolkitConfig.skip_mode_detection",
}


def _claims() -> dict[str, Any]:
    """Return the claims of all classes of data that are made in the rooms, with their defaults."""
    found = {}
    for room in ("model", "engines", "payload", "cdi", "nri", "change", "lifecycle", "report/doctor"):
        for path in (PACKAGE / room).rglob("*.py"):
            module = import_module(_name(path).removesuffix(".__init__"))
            for cls in filter(inspect.isclass, vars(module).values()):
                fields = getattr(cls, "_field_defaults", {})  # of a named tuple
                if is_dataclass(cls):
                    fields = {each.name: each.default for each in dataclasses.fields(cls)}
                if issubclass(cls, Struct):
                    defaults = cls.__struct_defaults__  # of the last fields
                    fields = dict(zip(cls.__struct_fields__[-len(defaults) :], defaults, strict=False))
                for name, value in fields.items():
                    if isinstance(value, bool):
                        found[f"{cls.__name__}.{name}"] = value
    return found


def test_a_claim_is_false_until_somebody_makes_it() -> None:
    found = _claims()

    assert len(found) > 40
    assert {name for name, value in found.items() if value} == TRUE
