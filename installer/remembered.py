"""How all stood that an install looked at which came to nothing: left for the next one (``unchanged.py``).

Nothing is left where that depends on more than these questions tell: on Docker, CDI, metrics and the like.
Each install finds out anew there.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from installer import log as logging
from installer import outcome
from installer.decide.artifacts import search_paths
from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.decide.inode import File, Meta
from installer.decide.layout import SYSTEM_BUSES
from installer.decide.options import Mode, Options, Places, RestartMode
from installer.decide.plan import Plan
from installer.decide.rows import Record
from installer.decide.toolkit import REQUIRED
from installer.flags import unknown_variables
from installer.host.files import Host
from installer.host.inodes import STAGED
from installer.host.questions import (
    Question,
    answers,
    of_engine,
    of_program,
    of_staged,
    of_this_start,
    on_the_way,
)
from installer.host.termination import PATH as TERMINATION
from installer.host.watched import SECOND_NS, TICK_NS, Watched, is_lasting
from installer.host.witness import variables
from installer.record.access import exposed
from installer.record.hints import in_place
from installer.record.internal import internal_errors
from installer.record.ledger import Ledger, read_record
from installer.unchanged import AT_ONCE_BYTES, FILE, SAYS, headed

PRIVATE: Final = Meta(0o600)
NOTHING: Final = "2"  # ENOENT, in the place of a mark
ANSWERED: Final = frozenset({"containerd"})  # its CRI tells all that an install asks it
TIME_BYTES: Final = 48
MARKS: Final = frozenset({"mark", "listed"})
FLEETING: Final = (PurePosixPath("/proc"), PurePosixPath("/sys"))


def remember(options: Options, ledger: Ledger, planned: Callable[[Host], Plan]) -> None:
    """Look once more as the next install will, and leave what it saw where that comes to nothing.

    It spares the next one time, and no more: whatever keeps it from being made is no error.
    """
    held = ledger.held
    if not _is_plain(options, held):
        return
    # Also a mistake of ours: the install is over, and nothing that fails here counts.
    with suppress(InstallerError), internal_errors(), suppress(OSError, ValueError, LookupError):
        time.sleep(TICK_NS / SECOND_NS)  # what is written a moment before has the same time as this look
        host, began_ns = Watched.under(options.host_root), time.time_ns()
        questions = [*_questions(host, options, held)]
        before = answers(questions)
        if read_record(host, options.layout) != held or list(exposed(host, options.layout, held)):
            return
        plan = planned(host)
        if plan.steps or plan.final != held or not _is_known(host, options, plan):
            return
        found = {**answers(of_program()), **_looked_at(host), **before}
        marks = ((path, answer) for (kind, path), answer in found.items() if kind in MARKS)
        lasting = all(is_lasting(path, answer, began_ns) for path, answer in marks)
        if lasting and before == answers(questions):
            said = logging.in_json(partial(_tell, options, held, plan))
            _leave(host, options, found, said)


def _tell(options: Options, held: Record, plan: Plan) -> None:
    outcome.tell_found(plan)
    outcome.tell_done(plan)
    outcome.tell_next_step(options, held)


def _is_plain(options: Options, held: Record) -> bool:
    """Tell whether nothing was asked for, or done, that depends on more than is looked at."""
    asked = options.published or options.cdi or options.adopt or options.retry or options.serves_nri
    places = [each for each in options.places.values() if each != Places()]
    elsewhere = options.mounts or places or options.crio_hook or options.in_place
    told = held.published or held.cdi or held.nodes or held.failed or held.left or not held.finished
    by_runtimes = options.mode is Mode.RUNTIME and options.restart_mode is not RestartMode.WHEN_IDLE
    spoken = logging.chosen() is logging.LogFormat.JSON and not unknown_variables(dict(variables()))
    known = {row.name for row in held.engines} <= ANSWERED
    return known and spoken and by_runtimes and not (asked or elsewhere or told)


def _is_known(host: Host, options: Options, plan: Plan) -> bool:
    """Tell whether the engines are those of the ledger, and each that runs has said what it serves.

    Where another one could be, nothing may be: a socket without an engine behind it would have to be asked.
    """
    engines = plan.engines.values()
    plain = not plan.pending and all(
        engine.name in ANSWERED
        and engine.hook is None
        and (engine.stopped or (engine.serving is not None and engine.pid is not None))
        for engine in engines
    )
    others = {ENGINES[name].socket for name in options.engine_names if name not in plan.engines}
    stopped = {engine.socket for engine in engines if engine.stopped}
    return plain and not any(host.exists(socket) for socket in others | stopped)


def _questions(host: Host, options: Options, held: Record) -> Iterator[Question]:
    """Yield what is looked at besides what a host is asked for: the payload, and who answers."""
    yield from of_this_start()
    yield "mark", str(TERMINATION)
    source, layout = options.toolkit_source, options.layout
    for path in (source / place for name in REQUIRED for place in search_paths(name)):
        yield from (("mark", each) for each in on_the_way(str(path)))
    for path in (
        layout.toolkit,
        layout.ledger,
        layout.counts,
        layout.check,
        *(row.path for row in held.configs),
    ):
        yield from (of_staged(host.local_path(path, last=last)) for last in (False, True))
    # What is written through a mapping of memory changes no mark while that goes on.
    yield from (("text", str(host.local_path(row.path))) for row in held.configs)
    removed = layout.check.with_name(layout.check.name + STAGED)  # as a tree is called while it goes
    yield from (("mark", str(host.local_path(path))) for path in (layout.check, removed, layout.counts))
    version = in_place(host, layout)
    for installed in host.below(version) if version is not None else ():
        yield "mark", str(installed)
        yield "listed", str(installed)
    buses = [host.local_path(path) for path in SYSTEM_BUSES]
    for row in held.engines:
        yield from of_engine(host.local_path(row.socket), row.unit, buses)


def _looked_at(host: Watched) -> dict[Question, str]:
    """Return the marks of all that a host was asked for; what the kernel makes up has none that lasts."""
    fleeting = tuple(f"{host.local_path(place)}/" for place in FLEETING)
    return {
        ("listed" if listed else "mark", path): mark
        for (path, listed), mark in host.looks.items()
        if not path.startswith((*map("{}/".format, FLEETING), *fleeting))
    }


def _leave(host: Host, options: Options, found: dict[Question, str], said: list[str]) -> None:
    version = in_place(host, options.layout)
    if version is None or found["mark", str(TERMINATION)] != NOTHING:  # Kubernetes is told how it ended
        return
    file = host.local_path(version / FILE)
    # They change by this very write; what else is there has marks of its own.
    own = {("mark", str(file)), ("listed", str(file)), ("listed", str(file.parent))}
    lines = [f"{kind} {answer} {what}" for (kind, what), answer in found.items() if (kind, what) not in own]
    text = "".join(f"{line}\n" for line in (*lines, *(f"{SAYS} {line}" for line in said)))
    room = sum(len(line) + TIME_BYTES for line in said) <= AT_ONCE_BYTES
    if room and text.isascii() and text.count("\n") == len(lines) + len(said):
        host.replace(version / FILE, File(f"{headed(text)}\n{text}".encode(), PRIVATE))
