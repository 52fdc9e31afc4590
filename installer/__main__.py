"""The entry point, also as ``python -m installer``."""

from installer.program import main

if __name__ == "__main__":
    main()
