"""The entry point: signals first, then the verb."""

import sys

from installer import signals


def main() -> None:
    """Run one verb and exit with its code."""
    signals.block()
    if sys.argv[1:2] == ["status"]:
        # A probe calls this every few seconds: nothing beyond the standard library is loaded.
        from installer.status import main as verb
    else:
        from installer.cli import main as verb
    sys.exit(verb(sys.argv[1:]))


if __name__ == "__main__":
    main()
