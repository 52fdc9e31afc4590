"""Change a word of a pure module at random, sixty times: the fast tests have to see nine of ten.

Say ``python -m tests.mutants.sample [--count N] [--seed N]``. Cosmic Ray makes the mutants; what it finds to do is
drawn from with a seed, which is printed. Left out is what no test should see: the number of seconds that something
is waited for, decorators, ``|`` between types, that a class is ``frozen`` and that sequences of one length are
``strict``ly so.

All fast tests run once without any mutant, and what each executes is noted line by line. A mutant is judged by the
tests that execute its line, then by the files that name its module or are called like it; what lives there by all
of them, for what the real program executes as a child of a test is noted for no test.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.mutants.__main__ import CACHE, FAILED, PROJECT, copy, first_red

# They are there for the torture alone, and one of them ships no types.
ast, mutating, plugins = (import_module(f"cosmic_ray.{name}") for name in ("ast", "mutating", "plugins"))
coverage = import_module("coverage")

PURE = "What decides is pure"  # as a contract of import-linter lists it
OPERATORS = re.compile(
    r"core/(AddNot|ExceptionReplacer|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceBreakWithContinue"
    r"|ReplaceContinueWithBreak|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceUnaryOperator_Delete_Not"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add)|ZeroIterationForLoop|ReplaceComparisonOperator_"
    r"(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Lt_Gt|Gt_Lt|Is_IsNot|IsNot_Is|In_NotIn|NotIn_In))"
)
SEEN = 0.9
AT_MOST = 300  # tests of those that execute a line; all of them come in the end
# A mutant may wait for ever; the whole takes some minutes.
LIMIT_S = 1800
INTERRUPTED = 2  # as pytest says it


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one word: the ``occurrence`` of what ``operator`` can do to a module."""

    module: Path
    operator: str
    occurrence: int

    def text(self) -> str:
        """Return the module with that change."""
        operator = plugins.get_operator(self.operator)()
        changed: str | None = mutating.mutate_code(
            (PROJECT / self.module).read_text(), operator, self.occurrence
        )
        assert changed is not None
        return changed

    def lines(self) -> set[int]:
        """Return the numbers of the lines that it changes."""
        before = (PROJECT / self.module).read_text().splitlines()
        changes = SequenceMatcher(None, before, self.text().splitlines(), autojunk=False).get_opcodes()
        return {
            line + 1 for kind, first, end, _, _ in changes if kind != "equal" for line in range(first, end)
        }

    def diff(self) -> str:
        """Return the two lines that tell it."""
        before = (PROJECT / self.module).read_text().splitlines()
        lines = list(unified_diff(before, self.text().splitlines(), lineterm="", n=0))[3:]
        return "\n".join(f"    {line}" for line in lines)


def mutants() -> Iterator[Mutant]:
    """Yield all that can be done to pure modules, in an order that stays."""
    operators = sorted(name for name in plugins.operator_names() if OPERATORS.fullmatch(name))
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = next(each["source_modules"] for each in contracts if each["name"] == PURE)
    places = [PROJECT / name.removesuffix(".**").replace(".", "/") for name in named]
    modules = {file for place in places for file in (*place.rglob("*.py"), place.with_suffix(".py"))}
    for module in sorted(file for file in modules if file.exists()):
        nodes = list(ast.ast_nodes(ast.get_ast(module.read_text())))
        for name in operators:
            operator = plugins.get_operator(name)()
            found = [node for node in nodes for _ in operator.mutation_positions(node)]
            yield from (
                Mutant(module.relative_to(PROJECT), name, index)
                for index, node in enumerate(found)
                if not _says_nothing(node)
            )


def _says_nothing(node: Any) -> bool:
    """Tell whether a node is in a decorator, or says that something is ``frozen`` or ``strict``ly of one length."""
    if node is None:
        return False
    word = node.type == "argument" and node.children[0].get_code().strip() in {"strict", "frozen"}
    return node.type == "decorator" or word or _says_nothing(node.parent)


def executing(mutant: Mutant, noted: Path) -> list[str]:
    """Return the tests that execute what is changed, first those called like it, then those of its floor."""
    data = coverage.CoverageData(str(noted))
    data.read()
    # As the copy of the project that they ran in has it.
    file = next((path for path in data.measured_files() if path.endswith(f"/{mutant.module}")), "")
    by_line = data.contexts_by_lineno(file) if file else {}
    # Behind the last one stands which part of a test it was; an id may have one as well.
    tests = {test.rpartition("|")[0] for line in mutant.lines() for test in by_line.get(line, ())} - {""}
    floor, called = f"tests/{mutant.module.parts[1]}/", f"test_{mutant.module.stem}"
    return sorted(tests, key=lambda test: (called not in test, not test.startswith(floor), test))[:AT_MOST]


def nearest(module: Path) -> list[str]:
    """Return the test files that name a module, or are called like it: they see it through the real program."""
    named = re.compile(rf"\b{re.escape('.'.join(module.with_suffix('').parts))}\b")
    files = (PROJECT / "tests").rglob("test_*.py")
    found = [
        file
        for file in files
        if "engines" not in file.parts
        and (named.search(file.read_text()) or file.stem.startswith(f"test_{module.stem}"))
    ]
    return sorted(str(file.relative_to(PROJECT)) for file in found)


def red_with(mutant: Mutant, directory: Path, noted: Path) -> str | None:
    """Return the fast test that sees a mutant in a copy, None where it lives; ``noted`` is what each executes."""
    stages = (executing(mutant, noted), nearest(mutant.module), ["tests"])
    (directory / mutant.module).write_text(mutant.text())
    try:
        return next((red for tests in stages if tests and (red := _red(directory, tests))), None)
    finally:
        shutil.copy(PROJECT / mutant.module, directory / mutant.module)


def _red(directory: Path, tests: list[str], noted: Path | None = None) -> str | None:
    words = ["-q", "-x", "-p", "no:cacheprovider", "--numprocesses", "2", "--ignore=tests/engines"]
    # Two mutants of one second and one length are the same to whoever keeps what was compiled.
    environment = os.environ | {
        "PYTHONPATH": str(directory),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TEST_CACHE": CACHE,
    }
    if noted is not None:
        words += ["--cov=installer", "--cov-context=test", "--cov-report="]
        environment |= {"COVERAGE_FILE": str(noted)}
    chosen = directory / "chosen"
    chosen.write_text("\n".join(tests))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, f"@{chosen}"],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it never ends"
    # Where a test cannot even be loaded pytest is interrupted, which is as red as can be.
    return first_red(done.stdout) or "not loaded" if done.returncode in {FAILED, INTERRUPTED} else None


def _told(mutant: Mutant, directory: Path, noted: Path) -> bool:
    """Print the verdict on a mutant; tell whether it was seen."""
    began, red = time.monotonic(), red_with(mutant, directory, noted)
    seconds = time.monotonic() - began
    print(f"{seconds:>4.0f} s  {mutant.module}  {mutant.operator}  {red or 'LIVES'}", flush=True)
    if not red:
        print(mutant.diff(), flush=True)
    return red is not None


def main() -> int:
    """Print each mutant that lives; return 1 where they are too many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    given = parser.parse_args()
    chance = random.Random(given.seed)  # noqa: S311 - to be repeated
    drawn = chance.sample(list(mutants()), given.count)
    print(f"seed {given.seed}", flush=True)
    with TemporaryDirectory(prefix="mutants-") as name, copy() as directory:
        noted = Path(name) / "noted"
        if red := _red(directory, ["tests"], noted):
            print(f"no mutant can be judged: {red} is red without any")
            return 1
        lives = sum(not _told(mutant, directory, noted) for mutant in drawn)
    print(f"the fast tests see {given.count - lives} of {given.count} mutants, seed {given.seed}")
    return int(given.count - lives < SEEN * given.count)


if __name__ == "__main__":
    sys.exit(main())
