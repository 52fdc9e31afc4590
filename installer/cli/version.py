"""The version of this program for people; a development version with its commit, if known."""

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from installer.host.programs import run_in

PACKAGE: Final = Path(__file__).parents[1]
COMMIT: Final = "commit"  # the file that a build of an image puts into the package
DIGITS: Final = 12
GIT_S: Final = 5.0


def describe_version() -> str:
    """Return the version of this program, such as ``0.3.0`` or ``0.3.0.dev0 (commit 0123456789ab)``."""
    number = version("node-toolkit-installer")
    if ".dev" in number:
        commit = find_commit(PACKAGE)
        if commit:
            return f"{number} (commit {commit})"
    return number


def find_commit(package: Path) -> str:
    """Return the commit of the package, by a file in the package or by git; "" if unknown."""
    with suppress(OSError, ValueError):
        return (package / COMMIT).read_text().strip()
    checkout = package.parent
    if not (checkout / ".git").exists():
        return ""
    words = ["git", "-C", str(checkout), "rev-parse", f"--short={DIGITS}", "HEAD"]
    ran = run_in(Path("/"), words, timeout_s=GIT_S)
    if ran is None or ran.returncode != 0:
        return ""
    return ran.stdout.strip()
