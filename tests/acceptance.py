"""The frozen acceptance: tests that see no more of the program than its users do, with the sum of each file.

    python -m tests.acceptance [--write [PATH ...]]

Each file of acceptance.txt is as it stands there, what a test imports stands there too, and none of them knows the
program's inside. A commit that changes one of these files, or its sum, changes nothing below installer/.
``--write`` makes the sums anew, and adds each PATH: a file, or all files below a directory.

A file that a decision takes off the list is retired there: ``# retired: PATH: words of its line in CHANGELOG.md``.
"""

import ast
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[1]
LIST = "tests/acceptance.txt"
PROGRAM = "installer/"
INSIDE = re.compile(r"\b(?:from|import) installer\b|-m installer\.|\binstaller/\w[\w/]*\.(?:py|toml)\b")


def sums(text: str) -> dict[str, str]:
    """Return the sum of each file of a list, by its path."""
    return {line[66:]: line[:64] for line in text.splitlines() if line and line[0] != "#"}


def retired(text: str) -> dict[str, str]:
    """Return the words that CHANGELOG.md has for each file that is gone from a list."""
    return dict(re.findall(r"^# retired: (\S+): (.+)$", text, re.MULTILINE))


def closure(project: Path, paths: Iterable[str]) -> set[str]:
    """Return files with all that they import of the tests, and the conftest.py that pytest loads for them."""
    found, left = set[str](), [*paths]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += _needed(project, path) if path.endswith(".py") else []
    return found


def _needed(project: Path, path: str) -> list[str]:
    names = set[str]()
    for node in ast.walk(ast.parse((project / path).read_bytes())):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    files = [f"{name.replace('.', '/')}.py" for name in names if name.startswith("tests.")]
    files += [f"{each}/conftest.py" for each in Path(path).parents if each != Path()]
    return [each for each in files if (project / each).is_file()]


def flaws(project: Path) -> Iterator[str]:
    """Yield what is wrong with the list as it stands."""
    text = (project / LIST).read_text()
    listed = sums(text)
    present = [path for path in listed if (project / path).is_file()]
    yield from (f"{path} is listed and is not there" for path in listed if path not in present)
    for path in present:
        if listed[path] != _sum(project / path):
            yield f"{path} has changed: commit that with `make acceptance`, and nothing of the program"
        if path.endswith(".py") and (found := INSIDE.search((project / path).read_text())):
            yield f"{path} knows the program's inside: {found[0]}"
    yield from (f"{path} is imported and not listed" for path in closure(project, present) - listed.keys())
    changes = (project / "CHANGELOG.md").read_text()
    gone = ((path, words) for path, words in retired(text).items() if words not in changes)
    yield from (f"{path} is retired, and CHANGELOG.md does not say {words!r}" for path, words in gone)


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def history(project: Path) -> Iterator[str]:
    """Yield each commit that changes what was frozen, and must not.

    Raises:
        RuntimeError: this checkout has no history.
    """

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(project), *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return done.stdout

    @cache
    def listed(commit: str) -> str:
        return git("show", f"{commit}:{LIST}") if git("ls-tree", commit, LIST) else ""

    top, shallow = git("rev-parse", "--show-toplevel", "--is-shallow-repository").splitlines()
    if shallow != "false" or not Path(top).samefile(project):
        raise RuntimeError("it is not the whole of a clone")
    since = git("log", "--diff-filter=A", "--format=%h", "--", LIST).split()[-1:]
    wanted = (
        ("--full-history", "--no-merges", "--name-only", "--format=%x00%h %p", f"{since[0]}..")
        if since
        else ()
    )
    log = git("log", *wanted, "--", "tests", PROGRAM) if since else ""
    for each in log.split("\0")[1:]:
        head, *touched = each.split("\n")
        commit, *parents = head.split()
        before, after = (sums(listed(it)) for it in (*parents, commit)) if parents else ({}, {})
        changed = {path for path in before if path in touched or before[path] != after.get(path)}
        if changed and any(path.startswith(PROGRAM) for path in touched):
            yield f"{commit} changes the program and {min(changed)}, which is frozen"
        gone = before.keys() - after.keys() - retired(listed(commit)).keys()
        yield from (f"{commit} takes {path} off the list without retiring it" for path in sorted(gone))


def write(project: Path, more: Iterable[str]) -> None:
    """Make the list anew: the tests and texts that it has, ``more``, and whatever they import by now."""
    text = (project / LIST).read_text()
    below = [each for path in more for each in (project / path, *(project / path).rglob("*"))]
    roots = {str(each.relative_to(project)) for each in below}
    roots |= {
        path for path in sums(text) if re.search(r"(^|/)((test|fake)_[^/]*|__main__)\.py$|(?<!\.py)$", path)
    }
    files = closure(project, (path for path in roots if (project / path).is_file() and ".pyc" not in path))
    notes = [line for line in text.splitlines() if line.startswith("#")]
    lines = [f"{_sum(project / path)}  {path}" for path in sorted(files)]
    (project / LIST).write_text("\n".join([*notes, *lines, ""]))


def main() -> int:
    """Check, after ``--write`` what was written."""
    if sys.argv[1:2] == ["--write"]:
        write(PROJECT, sys.argv[2:])
    found = [*flaws(PROJECT)]
    try:
        found += history(PROJECT)
    except (RuntimeError, OSError) as lack:
        print(f"acceptance: only the sums are checked, no history is here: {lack}")  # noqa: T201
    number = len(sums((PROJECT / LIST).read_text()))
    print("\n".join(found) or f"acceptance: {number} files are as they were frozen")  # noqa: T201
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
