"""The entry points with NVIDIA's names, also as ``python -m installer.nvidia``."""

from installer.__main__ import block_signals


def main() -> None:
    """Do the work of NVIDIA's command line, and exit with a code of NVIDIA's tool."""
    block_signals()
    from installer.cli.nvidia import main as program

    program()


if __name__ == "__main__":
    main()
