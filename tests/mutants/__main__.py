"""Take one guard away at a time: each time a test has to turn red. Say ``python -m tests.mutants [NAME...]``.

Each patch here removes one. Its first line says what the guard promises; the second names the tests that hold it,
as words for pytest, after settings for the environment where they need some.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
NOT_COPIED = (".git", ".venv", ".cache", "build", "__pycache__", ".*_cache")
CACHE = os.environ.get("TEST_CACHE") or str(PROJECT / ".cache/engines")
AT_ONCE = 2
FAILED = 1  # what pytest says when tests failed; all else is no verdict
_NAME = re.compile(r"^(?:FAILED|ERROR) (?:\S+::)?(.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant: ``red`` is the first test that saw it."""

    name: str
    promise: str
    red: str | None
    seconds: float
    said: str


def patches() -> list[Path]:
    """Return the patches, by name."""
    return sorted(HERE.glob("*.patch"))


def promise_of(patch: Path) -> tuple[str, list[str]]:
    """Return what the guard promises, and the words of the tests that hold it."""
    promise, tests = patch.read_text().splitlines()[:2]
    return promise, tests.removeprefix("Red: ").split()


@contextmanager
def copy() -> Iterator[Path]:
    """Make a copy of the project to be changed, and remove it."""
    with TemporaryDirectory(prefix="mutant-") as name:
        tree = Path(name) / "tree"
        shutil.copytree(PROJECT, tree, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
        yield tree


def apply(patch: Path, directory: Path, *more: str) -> None:
    """Take the guard away.

    Raises:
        subprocess.CalledProcessError: the patch does not fit the code any more.
    """
    subprocess.run(["git", "apply", *more, str(patch)], cwd=directory, check=True, capture_output=True)


def first_red(said: str) -> str | None:
    """Return the name of the first test that failed, from what pytest said."""
    found = _NAME.search(said)
    return found[1] if found else None


def verdict_on(patch: Path) -> Verdict:
    """Run the tests that hold a guard without it."""
    promise, words = promise_of(patch)
    began = time.monotonic()
    with copy() as tree:
        apply(patch, tree)
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        tests = [word for word in words if "=" not in word]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        environment = os.environ | settings | {"TEST_CACHE": CACHE, "PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    red = first_red(done.stdout) if done.returncode == FAILED else None
    return Verdict(patch.stem, promise, red, time.monotonic() - began, done.stdout + done.stderr)


def main(names: list[str]) -> int:
    """Print a verdict on each mutant; return 1 if one lives."""
    wanted = [patch for patch in patches() if not names or patch.stem in names]
    lives = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for verdict in pool.map(verdict_on, wanted):
            lives += verdict.red is None
            print(f"{verdict.name:<34}{verdict.seconds:>5.0f} s  {verdict.red or 'LIVES'}", flush=True)
            if verdict.red is None:
                print(verdict.said[-2000:])
    print(f"{len(wanted) - lives} of {len(wanted)} guards are held by a test")
    return min(lives, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
