"""Start a process of ``run`` as a script: supervisor and NRI plugin bare, any other child as the program."""

import sys


def main() -> None:
    """Become the process in the first argument."""
    # Python has put the directory of this script into the path, but modules are imported from its parent.
    parent, _, _ = __file__.rpartition("/installer/")
    others = [each for each in sys.path if each != f"{parent}/installer"]
    sys.path[:] = [parent, *others]

    match sys.argv[1]:
        case "supervisor":  # imported: code that is compiled in this script would stay in memory
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
