"""The program image in which ``run`` waits: a bare interpreter that nothing of ours is loaded into.

It is started as a script with the arguments COUNT, then COUNT numbers of signals, then the command that
is to be executed, in the same process, when one of them comes. Pid, locks and the signal mask stay.
"""

import posix
import sys
from _signal import sigwait  # type: ignore[import-not-found]  # signal itself loads enum and more: half a megabyte to wait with

WOKEN_BY = b"_TOOLKIT_INSTALLER_WOKEN_BY"
LISTENS = b"_TOOLKIT_INSTALLER_LISTENS"
UNDO_INCOMPLETE = 4  # as decide.errors.Exit


def main(arguments: list[str]) -> int:
    """Wait for one of the signals; return an exit code where the full program cannot be started any more."""
    count = int(arguments[0])
    numbers = [int(word) for word in arguments[1 : 1 + count]]
    command = arguments[1 + count :]
    woken_by = _wait(numbers)
    environment = {**posix.environ, WOKEN_BY: str(int(woken_by)).encode()}
    try:
        for file in (__file__, *(word for word in command[:2] if word.startswith("/"))):
            posix.stat(file)  # an interpreter without its program would end with a code of its own
        posix.execve(command[0], command, environment)
    except OSError as error:
        reason = f"toolkit-installer: cannot start {error.filename} again ({error.strerror})"
        _say(f"{reason}, so everything is kept; put it back and run uninstall\n")
    return UNDO_INCOMPLETE


def _wait(numbers: list[int]) -> int:
    told = posix.environ.get(LISTENS)
    if not told:
        return int(sigwait(numbers))
    sys.path.insert(0, __file__.rpartition("/")[0])  # there is nothing else to import from
    return int(__import__("answering").wait(numbers, told))


def _say(text: str) -> None:
    """Write to stderr if somebody reads it within half a second: the end of a pod waits for us."""
    try:
        from select import POLLOUT, poll

        waiting = poll()
        waiting.register(2, POLLOUT)
        if waiting.poll(500):
            posix.write(2, text.encode(errors="backslashreplace"))
    except (ImportError, OSError):
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
