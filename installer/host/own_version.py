"""The version of this program."""

from contextlib import suppress
from functools import cache


@cache
def own_version() -> str:
    """Return the version of this program; "unknown" of a source tree."""
    from importlib.metadata import PackageNotFoundError, version  # where the version is asked for alone

    with suppress(PackageNotFoundError):
        return version("node-toolkit-installer")
    return "unknown"
