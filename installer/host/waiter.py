"""The program image in which ``run`` waits: a bare interpreter that nothing of ours is loaded into.

It is started as a script with three lists, each its length and then its words: the numbers of signals, the
places that are watched with what is known of them (see ``Watch``), and the command that is to be executed, in
the same process, when one of the signals comes or a place has changed. Pid, locks and the signal mask stay.
Behind them are the file descriptors by which the kernel tells of changes (dnotify.py), to be closed then.
"""

import posix
import sys
from _signal import (  # type: ignore[import-not-found]  # signal itself loads enum and more: half a megabyte to wait with
    SIG_BLOCK,
    SIG_UNBLOCK,
    SIGCHLD,
    SIGKILL,
    SIGURG,
    SIGWINCH,
    pthread_sigmask,
    sigpending,
    sigtimedwait,
    sigwait,
)
from _stat import S_ISLNK
from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded to wait
    from collections.abc import Callable
    from typing import TypeAlias

    # What is done beside the wait whenever a signal comes: which, and what, in how many seconds again.
    Aside: TypeAlias = tuple[int, Callable[[list[int]], float | None]]

WOKEN_BY = b"_TOOLKIT_INSTALLER_WOKEN_BY"
LISTENS = b"_TOOLKIT_INSTALLER_LISTENS"
PLUGIN = b"_TOOLKIT_INSTALLER_NRI"  # as in nri_child.py
UNDO_INCOMPLETE = 4  # as decide.errors.Exit
# One tells of a change, one of somebody who asks for metrics. A process that expects neither ignores both,
# so one that comes late harms nobody.
CHANGED, ASKED = int(SIGURG), int(SIGWINCH)  # the first as in dnotify.py
ENDED = int(SIGCHLD)
CHECK_S = 60.0  # what is watched is compared as often: not every kernel or file system tells of changes
SOON_S = 2.0  # as often where a place is a pattern: what comes and goes with a driver tells of nothing
ANSWER_POLL_S = 0.05
MANY_FILES = 1024
QUIET_S = 1.0  # editors and scripts write several times
NEVER_QUIET = 10  # in QUIET_S: then it is looked at all the same
MANY = 512  # names in one directory
PROC = "/proc/"
# Before a path: one that is to be there; a socket, with a letter for what is spoken on it (asking.py); a
# directory that could not be written to; and one that is to stay mounted as it is, with room in it.
THERE, ASK, ROOM, KEPT = "!", "?", "%", "="
FEW = 16  # inodes: with 6 no container starts
LITTLE = 256 << 10  # bytes: with 32 KiB no container starts, with 64 KiB one with a small config does


def main(arguments: list[str]) -> int:
    """Wait for a signal or a change; return an exit code where the program cannot be started again."""
    words = iter(arguments)
    numbers, watched, command = ([next(words) for _ in range(int(next(words)))] for _ in range(3))
    for fd in words:
        posix.set_inheritable(int(fd), False)  # noqa: FBT003 - its only form
    woken_by = wait([int(word) for word in numbers], watched)
    pthread_sigmask(SIG_UNBLOCK, [CHANGED, ASKED, ENDED])
    environment = {**posix.environ, WOKEN_BY: str(int(woken_by)).encode()}
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    try:
        for file in (__file__, *(word for word in (command[0], script) if word.startswith("/"))):
            posix.stat(file)  # an interpreter without its program would end with a code of its own
        posix.execve(command[0], command, environment)
    except OSError as error:
        reason = f"toolkit-installer: cannot start {error.filename} again ({error.strerror})"
        _say(f"{reason}, so everything is kept; put it back and run uninstall\n")
    return UNDO_INCOMPLETE


def wait(numbers: list[int], watched: list[str]) -> int:
    """Return the signal that came, or ``CHANGED`` where a place is not as it was, or the time has come."""
    asides = _asides()
    if not watched:
        return _until(numbers, asides, None)
    before, due_s, rest_s, *places = watched
    asked = [place[1:] for place in places if place[0] == ASK]
    places = [place for place in places if place[0] != ASK]
    began = monotonic()
    ask_at = began + CHECK_S if asked else float("inf")
    due = began + float(due_s) if float(due_s) else float("inf")
    pthread_sigmask(SIG_BLOCK, [CHANGED])
    check_s = SOON_S if compared_soon(places) else CHECK_S
    while monotonic() < due:
        # First: to ask an engine that its owner has stopped may start it again, by its socket.
        if signature(places) != before:
            came = _settled(numbers, asides, places, before, began + float(rest_s))
            if came:
                return came
            continue
        if monotonic() >= ask_at:
            if _silent(asked, numbers):
                return CHANGED
            ask_at = monotonic() + CHECK_S
        came = _until([*numbers, CHANGED], asides, max(0.0, min(check_s, due - monotonic())))
        if came == CHANGED and signature(places) == before:
            # A busy directory, such as /run, tells of much that is not ours: one look a second is enough.
            came = _until(numbers, asides, QUIET_S)
        if came not in {0, CHANGED}:
            return came
    return CHANGED


def _settled(
    numbers: list[int], asides: "list[Aside]", places: list[str], before: str, not_before: float
) -> int:
    """Wait until nobody writes any more; return what to wake for, 0 where all is as it was ``before``."""
    found = signature(places)
    for _ in range(NEVER_QUIET):
        came = _until(numbers, asides, max(QUIET_S, not_before - monotonic()))
        if came:
            return came
        last, found = found, signature(places)
        if found == before:
            return 0
        if found == last:
            break
    return CHANGED


def _silent(asked: list[str], numbers: list[int]) -> bool:
    """Tell whether one of the engines does not answer any more.

    A child asks: what that loads would stay with the wait. A stop is heard meanwhile.
    """
    try:
        child = posix.fork()
        if not child:
            try:
                posix.closerange(3, MANY_FILES)  # the locks are those of run alone
                _find_beside_us()
                posix._exit(__import__("asking").silent(asked))  # noqa: SLF001 - nothing of ours goes on here
            finally:
                posix._exit(0)  # noqa: SLF001 - as above
        while not (ended := posix.waitpid(child, posix.WNOHANG))[0]:
            if sigpending() & {*numbers}:
                posix.kill(child, SIGKILL)
                return False
            sleep(ANSWER_POLL_S)
    except OSError:  # no room for one more process; or SIGCHLD is ignored, and nobody can wait for one
        return False
    return bool(ended[1] == 1 << 8)  # its exit code, wait(2)


def _find_beside_us() -> None:
    """Let imports be found: there is nothing else, and this may be the compiled file, a directory below."""
    directory = __file__.rpartition("/")[0].removesuffix("/__pycache__")
    if directory not in sys.path:
        sys.path.insert(0, directory)


def _asides() -> "list[Aside]":
    """Return what is done beside the wait: metrics are told, and the NRI plugin is kept running."""
    found: list[Aside] = []
    for number, variable, module in ((ASKED, LISTENS, "answering"), (ENDED, PLUGIN, "nri_child")):
        if said := posix.environ.get(variable):
            pthread_sigmask(SIG_BLOCK, [number])
            _find_beside_us()
            try:
                found.append((number, __import__(module).beside(said, number)))
            except (ImportError, OSError, ValueError):
                continue  # the wait is what counts
    return found


def _until(numbers: list[int], asides: "list[Aside]", seconds: float | None) -> int:
    """Return the signal that comes within some ``seconds``, None for ever; 0 where none does."""
    due = None if seconds is None else monotonic() + seconds
    own = [number for number, _ in asides]
    while True:
        again = [after for _, act in asides if (after := act(numbers)) is not None]
        if due is not None:
            again.append(due - monotonic())
        if again:
            told = sigtimedwait([*numbers, *own], max(0.0, min(again)))
            came = told.si_signo if told else 0
        else:
            came = int(sigwait([*numbers, *own]))
        # The time counts also where one of the asides was told of: they come without an end.
        if came in numbers or (due is not None and monotonic() >= due):
            return came * (came in numbers)


def compared_soon(places: list[str]) -> bool:
    """Tell whether all is compared every other second, for one of ``places`` comes and goes untold."""
    return any(place[-1] == "*" for place in places)


def directories(places: list[str]) -> list[str]:
    """Return the directories whose changes are those of ``places``.

    Where all is compared soon there are none: what is held open of a driver keeps its mount busy.
    """
    if compared_soon(places):
        return []
    paths = (
        place.removeprefix(THERE)
        for place in places
        if place[0] not in {ASK, ROOM, KEPT} and PROC not in place
    )
    return sorted({path.rpartition("/")[0] or "/" for path in paths})


def signature(places: list[str]) -> str:
    """Return a number that is another one as soon as a place is.

    That is a path, with / at its end all in a directory, with * all whose names begin so, behind ``THERE``
    one that is to be there, whatever it is, behind ``ROOM`` a file system that may get writable or space, and
    behind ``KEPT`` one that may lose either.
    """
    found: list[int] = []
    for place in places:
        if place[0] in {ROOM, KEPT}:
            found += _room(place[1:], place[0] == KEPT)
            continue
        if PROC in place or place[0] == THERE:  # of the host, perhaps mounted; its times are those of a look
            found += [] if _stat(place.removeprefix(THERE)) else [-1]  # one that runs is as expected
            continue
        if place[-1] == "*":
            found += _named(place[:-1])
            continue
        if place[-1] != "/":
            found += _stat(place)
            continue
        try:
            # What begins with a dot is a text that somebody, perhaps we, is about to rename.
            names = sorted(name for name in posix.listdir(place) if name[0] != ".")
        except OSError:
            names = []
        found += _stat(place[:-1])[:3] if len(names) <= MANY else _stat(place[:-1])
        for name in names[:MANY]:
            found += _stat(place + name)
    return str(hash(tuple(found)))  # of numbers alone: the same in each process


def _named(beginning: str) -> list[int]:
    """Return what is said of all names that begin so; a device's times are those of its use."""
    directory, _, start = beginning.rpartition("/")
    try:
        names = sorted(name for name in posix.listdir(directory or "/") if name.startswith(start))
    except OSError:
        return []
    return [number for name in names[:MANY] for number in _stat(f"{directory}/{name}")[:3]]


def _room(path: str, kept: bool) -> list[int]:  # noqa: FBT001 - typing is not loaded to wait
    """Return what is said of a file system once it is writable, and whenever its space has doubled.

    Of one that is to be ``kept`` as it is: how it is mounted, and whether there is room in it.
    """
    try:
        said = posix.statvfs(path)
    except OSError:
        return []
    if kept:
        return [said.f_flag, int(lacks_room(said))]
    return [said.f_flag & posix.ST_RDONLY, said.f_bavail.bit_length()]


def lacks_room(said: posix.statvfs_result) -> bool:
    """Tell whether a file system has no room for a container of root's; without a limit it has."""
    little = said.f_blocks and said.f_bfree * said.f_frsize < LITTLE
    return bool(little or (said.f_files and said.f_ffree < FEW))


def _stat(path: str) -> list[int]:
    try:
        found = [posix.lstat(path)]
        if S_ISLNK(found[0].st_mode):
            found.append(posix.stat(path))
    except (OSError, ValueError):
        return []
    return [
        number
        for at in found
        for number in (at.st_dev, at.st_ino, at.st_mode, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
    ]


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
