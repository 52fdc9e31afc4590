"""The entry point, also as ``python -m installer``."""

from installer.cli.program import main

if __name__ == "__main__":
    main()
