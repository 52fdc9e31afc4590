"""The entry point, also as ``python -m installer``.

Signals are blocked first: Python answers an interrupt, while it loads the program, by a traceback.
"""

import signal


def block_signals() -> None:
    """Keep pending what asks to stop; ``host.supervision`` says who looks at it."""
    stop = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)


def main() -> None:
    """Do one verb, and exit with its code."""
    block_signals()
    from installer.cli.program import main as program

    program()


if __name__ == "__main__":
    main()
