"""Which questions of ``witness.py`` tell how something stands that an install depends on."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from installer.host import witness
from installer.host.inodes import staged_name
from installer.host.places import MAX_LINKS
from installer.host.processes import started_of
from installer.host.watched import SECOND_NS

PROC: Final = Path("/proc")
OF_A_NODE: Final = ("sys/kernel/random/boot_id", "self/mountinfo")
OF_A_PROCESS: Final = ("cmdline", "environ", "cgroup", "comm")

Question = tuple[str, str]  # its kind, and of what


def answers(questions: Iterable[Question]) -> dict[Question, str]:
    """Return each question with its answer.

    Raises:
        OSError, ValueError, LookupError: one has none.
    """
    return {question: witness.found(*question) for question in questions}


def of_this_start() -> Iterator[Question]:
    """Yield what was asked for, by whom, in which boot and among which mounts."""
    yield from (("asked", ""), ("rights", ""))
    yield from (("text", str(PROC / name)) for name in OF_A_NODE)


def of_program() -> Iterator[Question]:
    """Yield the files of all code that has taken part, and what would be taken in the place of ours.

    Raises:
        ValueError: one was changed since this process has begun; nobody knows which of the two it has read.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    scripts = [sys.argv[0]] if Path(sys.argv[0]).is_file() else []
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    began_ns = (booted_s + (started_of(os.getpid(), PROC) or 0.0)) * SECOND_NS
    named = {str(Path(each).absolute()) for each in (*files, *scripts, sys.executable) if each}
    for path in sorted(named | {os.path.realpath(each) for each in named}):
        if os.lstat(path).st_ctime_ns > began_ns:
            raise ValueError(path)
        yield "mark", path
    names = {name.partition(".")[0] for name in list(sys.modules)} - sys.stdlib_module_names
    for place in (str(Path(each).absolute()) for each in sys.path):
        yield "mark", place
        yield from (("mark", f"{place}/{name}{ending}") for name in sorted(names) for ending in ("", ".py"))


def on_the_way(path: str) -> Iterator[str]:
    """Yield what is passed on the way to what a path leads to: links, and the places that they lead to."""
    for _ in range(MAX_LINKS):
        above, rest = "", path.strip("/")
        while rest:
            part, _, rest = rest.partition("/")
            at = f"{above}/{part}"
            yield at
            if os.path.islink(at):  # noqa: PTH114 - texts, for there are hundreds
                path = os.path.normpath(os.path.join(above or "/", os.readlink(at), rest))  # noqa: PTH115, PTH118
                break
            above = at
        else:
            return


def of_staged(path: Path) -> Question:
    """Return what tells whether a killed process has left what was to take the place of ``path``."""
    return "mark", str(staged_name(path))


def of_engine(socket: Path, unit: str, buses: Sequence[Path]) -> Iterator[Question]:
    """Yield who answers on the socket of an engine, how that was started, and how systemd has its unit.

    Raises:
        OSError: nobody of root's answers.
        ValueError: systemd is reached by a bus alone that strangers are on, too.
    """
    yield "mark", str(socket)
    if socket.exists():
        yield "cri", str(socket)
        pid = witness.answerer(str(socket))
        yield "started", str(pid)
        yield from (("text", f"{PROC}/{pid}/{name}") for name in OF_A_PROCESS)
    private, *others = buses
    if private.exists():
        yield "unit", f"{private} {unit}"
        return
    if any(path.exists() for path in others):
        raise ValueError(others)
    yield from (("mark", str(path)) for path in buses)
