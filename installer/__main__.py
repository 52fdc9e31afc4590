"""The entry point: a probe first, which needs next to nothing; else signals, then the verb."""

import posix
import sys

from installer.probes import answer


def main() -> None:
    """Run one verb and exit with its code."""
    code = answer(sys.argv[1:])
    if code is not None:
        posix._exit(code)  # noqa: SLF001 - nothing was opened or written that the interpreter would have to end
    from installer.program import main as program

    program()


if __name__ == "__main__":
    main()
