"""Starts a process of ``run`` as a script: supervisor and NRI plugin bare, any other child as the program."""

import sys


def main() -> None:
    """Become what the first argument says."""
    # Of a path such as /opt/x/installer/start.py, whose own directory is no place to import from.
    package = __file__.rpartition("/installer/")[0]
    sys.path[:] = [package, *(each for each in sys.path if each != f"{package}/installer")]
    match sys.argv[1]:
        case "supervisor":  # as an import: what is compiled here would stay in memory
            from installer.supervisor import Supervisor

            sys.exit(Supervisor(sys.argv[2:]).run())
        case "plugin":
            from installer.nri.plugin import main as serve

            sys.exit(serve(sys.argv[2:]))
        case _:
            from installer.cli.program import main as program

            program(child=True)


if __name__ == "__main__":
    main()
