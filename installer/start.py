"""Starts a process of ``run`` as a script: supervisor and NRI plugin bare, any other child as the program."""

import os
import sys

MS_PRIVATE = 1 << 18  # linux/mount.h


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
        case "successor":
            _carry_on(sys.argv[2], sys.argv[3:])
        case _:
            from installer.cli.program import main as program

            program(child=True)


def _carry_on(pid: str, command: list[str]) -> None:
    """Become ``command`` with the environment of the ``run``, process ``pid``, that left it its undo."""
    # systemd starts this in the mount namespace of that container.
    with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - nothing is loaded that is not needed
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    if not os.path.exists("/proc/self"):  # noqa: PTH110
        import ctypes

        # That /proc shows the container's processes only, and goes with them.
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mount(b"none", b"/proc", None, MS_PRIVATE, None)
        if libc.mount(b"proc", b"/proc", b"proc", 0, None):
            sys.exit(f"cannot mount /proc: {os.strerror(ctypes.get_errno())}")
    environment = {name: value for name, _, value in entries}
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is meant to be there


if __name__ == "__main__":
    main()
