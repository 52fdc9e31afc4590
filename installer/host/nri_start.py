"""Starts the NRI plugin in an interpreter that finds nothing of ours by itself (python -I -S)."""

import sys


def main() -> None:
    """Serve until told to stop, and exit with the code of it."""
    # Of a path such as /opt/x/installer/host/nri_start.py.
    sys.path.insert(0, __file__.rpartition("/installer/")[0])
    from installer.host.nri_plugin import main as serve

    sys.exit(serve(sys.argv[1:]))


if __name__ == "__main__":
    main()
