"""Random lives by this program and by each of baseline.txt, which is built in .cache from its commit."""

import subprocess
import sys
from pathlib import Path

from tests.differential import differ

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


def built(commit: str) -> Path:
    """Return where the programs of a commit are."""
    home = PROJECT / ".cache/differential" / commit
    if not (home / "built").exists():
        (home / "source").mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=PROJECT, capture_output=True, check=True)
        subprocess.run(["tar", "-x"], cwd=home / "source", input=archive.stdout, check=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(home / "venv/bin/python"), "install", "--quiet"]
        subprocess.run([*pip, "--constraint", "constraints.txt", "."], cwd=home / "source", check=True)
        (home / "built").touch()
    return home / "venv/bin"


def main() -> int:
    """Return 1 where one differs in what is not accepted."""
    lines = [line for line in (HERE / "baseline.txt").read_text().splitlines() if line[:1] not in {"", "#"}]
    ours = str(Path(sys.executable).parent)
    codes = [
        differ.main([str(built(commit)), ours, "--accept", str(HERE / accepted), *sys.argv[1:]])
        for commit, accepted in map(str.split, lines)
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
