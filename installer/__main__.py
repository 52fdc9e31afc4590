"""The entry point, also as ``python -m installer``.

Signals are blocked first: Python answers an interrupt, while it loads the program, by a traceback.
"""

import signal


def block_signals() -> None:
    """Keep signals to stop pending, until ``host.supervision`` reads them between steps."""
    stop = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)


def main() -> None:
    """Do a verb, and exit with the exit code."""
    block_signals()
    from installer.cli.program import main as program

    program()


if __name__ == "__main__":
    main()
