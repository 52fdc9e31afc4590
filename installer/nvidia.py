"""The entry points that have NVIDIA's names, also as ``python -m installer.nvidia``."""

from installer.__main__ import block_signals


def main() -> None:
    """Do what NVIDIA's tool is asked to do, and exit with its codes."""
    block_signals()
    from installer.cli.nvidia import main as program

    program()


if __name__ == "__main__":
    main()
