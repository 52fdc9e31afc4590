"""Debian's Python comes without pip: its wheel is fetched into the cache, and runs from there.

The Makefile runs this with the machine's own Python, which has the standard library and nothing else.
"""

import sys
from pathlib import Path

from tests.engines import debs
from tests.engines.cache import build_once, cache, locked

SUITE = "trixie"
PACKAGE = "python3-pip-whl"


def pip_wheel() -> Path:
    """Return pip's wheel; Python runs ``WHEEL/pip`` as it is.

    Raises:
        RuntimeError: it cannot be had on this machine.
    """
    if lack := debs.needed():
        raise RuntimeError(lack)

    def build(root: Path) -> None:
        debs.refresh([SUITE])
        debs.unpack(SUITE, debs.alone(SUITE, [PACKAGE]), root)

    with locked():
        root = build_once(cache() / f"root-{PACKAGE}", build)
    return next(root.glob("usr/share/python-wheels/pip-*.whl"))


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{pip_wheel()}\n")
    except RuntimeError as error:
        sys.exit(f"needs pip: install python3-venv, or let it be fetched from Debian ({error})")
