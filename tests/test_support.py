"""What tests share is in modules of its own, so that one file of tests can be run, moved or removed alone."""

import ast
from pathlib import Path

PROJECT = Path(__file__).parent.parent
MODULES = sorted(path for top in ("tests", "benchmarks") for path in (PROJECT / top).rglob("*.py"))


def test_nothing_is_imported_from_a_module_of_tests() -> None:
    named = [
        (str(path.relative_to(PROJECT)), node.module)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    ]

    assert [each for each in named if each[1].rpartition(".")[2].startswith("test_")] == []


def test_each_golden_text_is_one_that_make_golden_rewrites() -> None:
    asking = [path for path in MODULES if '"GOLDEN"' in path.read_text() and path != Path(__file__)]

    assert [str(path.relative_to(PROJECT)) for path in asking] == ["tests/support/golden.py"]
