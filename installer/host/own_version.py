"""The version of this program: the number, and for people a development version with its commit."""

import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1]
# The directory in which pip records the installed program is called NAME-VERSION.dist-info.
RECORD_PREFIX: Final = "node_toolkit_installer-"
RECORD_SUFFIX: Final = ".dist-info"
COMMIT: Final = "commit"  # the file that a build of an image puts into the package
DIGITS: Final = 12
GIT_S: Final = 5.0


@cache
def own_version() -> str:
    """Return the version of this program, such as ``0.3.0``; "unknown" of a source tree."""
    # importlib.metadata would find the same, but takes longer to load than Python takes to start.
    for directory in sys.path:
        for record in Path(directory).glob(f"{RECORD_PREFIX}*{RECORD_SUFFIX}"):
            return record.name.removeprefix(RECORD_PREFIX).removesuffix(RECORD_SUFFIX)
    return "unknown"


@cache
def identify_build() -> tuple[str, str]:
    """Return version and commit, which tell two builds of the same number apart; "" for an unknown commit."""
    return own_version(), find_commit(PACKAGE)


@cache
def describe_version() -> str:
    """Return the version as ``--version`` prints it and as the ledger records its writer."""
    return describe(own_version(), PACKAGE)


def describe(number: str, package: Path) -> str:
    """Return ``0.3.0`` of a release, and ``0.3.0.dev0 (commit 0123456789ab)`` of a development version."""
    if ".dev" in number:
        commit = find_commit(package)
        if commit:
            return f"{number} (commit {commit})"
    return number


def find_commit(package: Path) -> str:
    """Return the commit of the package, by a file in the package or by git; "" if unknown.

    A package that pip has built from a checkout has neither: it does not change with that checkout.
    """
    with suppress(OSError, ValueError):
        return (package / COMMIT).read_text().strip()
    checkout = package.parent
    if not (checkout / ".git").exists():
        return ""
    from installer.host.programs import run_in  # only a checkout asks git

    words = ["git", "-C", str(checkout), "rev-parse", f"--short={DIGITS}", "HEAD"]
    ran = run_in(Path("/"), words, timeout_s=GIT_S)
    if ran is None or ran.returncode != 0:
        return ""
    return ran.stdout.strip()
