"""What of ``make test-all`` a change touches: ``python -m tests.touched`` prints these tests, or nothing.

The change is what HEAD has since the commit ``SINCE``; without one, since it left origin/main. Where neither is known, as
in a shallow clone or on main itself, everything is touched. The table is .ci/touched.
"""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1]
EVERYTHING = ["tests"]


def table() -> dict[str, list[str]]:
    """Return the tests of each path of the table."""
    lines = (PROJECT / ".ci/touched").read_text().splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines if line[0] != "#"}


def touched(changed: Iterable[str]) -> list[str]:
    """Return the tests that changed files touch."""
    rows, found = table(), set[str]()
    for file in changed:
        if Path(file).name.startswith("test_") and file.startswith("tests/"):
            found |= {file} if (PROJECT / file).exists() else set()
        elif fitting := [path for path in rows if file.startswith(path)]:
            found |= {*rows[max(fitting, key=len)]}
        else:
            return EVERYTHING
    return sorted(found)


def changes(project: Path, since: str) -> list[str] | None:
    """Return the files that HEAD has changed since a commit, or since it left origin/main; None where none is known."""

    def git(*words: str) -> list[str] | None:
        done = subprocess.run(["git", *words], cwd=project, capture_output=True, text=True, check=False)
        return None if done.returncode else done.stdout.splitlines()

    here, base = git("rev-parse", "HEAD"), [since] if since else git("merge-base", "origin/main", "HEAD")
    return git("diff", "--name-only", base[0], "HEAD") if base and base != here else None


def main() -> None:
    """Print the tests in a line."""
    found = changes(PROJECT, os.environ.get("SINCE", ""))
    print(*(EVERYTHING if found is None else touched(found)))  # noqa: T201


if __name__ == "__main__":
    main()
