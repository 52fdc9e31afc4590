"""The entry point: signals first, then the verb."""

import sys

from installer import signals
from installer.host.boot import open_standard_streams


def main() -> None:
    """Run one verb and exit with its code."""
    signals.block()
    open_standard_streams()
    if sys.argv[1:2] == ["status"]:
        # A probe calls this every few seconds: nothing beyond the standard library is loaded.
        from installer.status import main as verb
    else:
        from installer.cli import main as verb
    sys.exit(verb(sys.argv[1:]))


if __name__ == "__main__":
    main()
