"""Starts the verb ``nri`` of this very program, however the program itself was started."""

import sys


def main() -> None:
    """Run the verb with the arguments of this script."""
    # Of a path such as /opt/x/installer/nri_verb.py, whose own directory is no place to import from.
    sys.path[0] = __file__.rpartition("/installer/")[0]
    from installer.program import main as program

    sys.argv[1:1] = ["nri"]
    program()


if __name__ == "__main__":
    main()
