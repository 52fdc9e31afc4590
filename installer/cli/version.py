"""The version that a person is told: of a development version also the commit, where it is known."""

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
    commit = find_commit(PACKAGE) if ".dev" in number else ""
    return f"{number} (commit {commit})" if commit else number


def find_commit(package: Path) -> str:
    """Return the commit that the package was made from; "" where neither a file nor git tells."""
    with suppress(OSError, ValueError):
        return (package / COMMIT).read_text().strip()
    checkout = package.parent
    if not (checkout / ".git").exists():
        return ""
    words = ["git", "-C", str(checkout), "rev-parse", f"--short={DIGITS}", "HEAD"]
    ran = run_in(Path("/"), words, timeout_s=GIT_S)
    return ran.stdout.strip() if ran is not None and ran.returncode == 0 else ""
