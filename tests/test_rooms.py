"""What holds for each file of the program; what may import what is held by import-linter."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from installer.engines import ENGINES
from installer.engines.apis import APIS

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


# The module of each engine's class, or the folder of that module.
OWN = {".".join(type(engine).__module__.split(".")[:3]) for engine in ENGINES.values()}
# A new engine is a file and a line of the first, a new protocol a file and a line of the second.
TABLES = {"installer.engines.__init__", "installer.engines.apis"}


def _is_of_an_engine(module: str) -> bool:
    return any(module == own or module.startswith(f"{own}.") for own in OWN)


OTHERS = [path for path in MODULES if not _is_of_an_engine(_name(path))]


def test_no_module_asks_which_engine_it_is() -> None:
    assert [(_name(path), engine) for path in OTHERS for engine in _compared(_nodes(path))] == []


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules that a module imports; a name that is imported from a module may be a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_only_the_two_tables_import_an_engines_own_module() -> None:
    imports = [(_name(path), module) for path in OTHERS for module in _imported(_nodes(path))]

    strange = [(name, module) for name, module in imports if _is_of_an_engine(module) and name not in TABLES]

    assert {f"installer.engines.{name}" for name in ("containerd", "crio", "docker", "k3s")} <= OWN
    assert strange == []


def _words_compared(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all parts of comparisons and of the patterns of cases, and the subjects of a match."""
    for node in nodes:
        if isinstance(node, (ast.Compare, ast.MatchValue)):
            yield from ast.walk(node)
        elif isinstance(node, ast.Match):
            yield from ast.walk(node.subject)


def test_no_module_asks_which_protocol_an_engine_speaks() -> None:
    asking = [
        _name(path)
        for path in MODULES
        for word in _words_compared(_nodes(path))
        if isinstance(word, ast.Attribute) and word.attr == "api"
    ]

    assert asking == []


def test_each_engine_has_a_protocol_and_one_way_of_reading_its_config() -> None:
    assert {engine.api for engine in ENGINES.values()} == {*APIS}
    for engine in ENGINES.values():
        ways = (engine.reads_config_on_signal, engine.restarts_itself, engine.is_restarted)
        assert ways.count(True) == 1, engine.name


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
