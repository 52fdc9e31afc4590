"""The last look and the last act as ``status`` tells them, and the one sentence that a failed probe shows."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from installer.decide.data import replace
from installer.decide.options import GPU_KIND
from installer.decide.rows import Record
from installer.host.files import Host
from installer.host.glance import is_held_pidfile
from installer.record.seen import EngineSeen, Seen

LOOK: Final = "last look"
RECONCILE: Final = "toolkit-installer reconcile"


def lines(seen: Seen | None) -> Iterator[tuple[str, str, bool, bool]]:
    """Yield what was seen: about what, how it was, whether it was good, and whether the node is ready so."""
    if seen is None:
        return
    if not seen.current:
        yield (
            LOOK,
            f"at {seen.time}, by a run that has ended (pid {seen.pid}): nobody watches this node",
            True,
            True,
        )
        return
    if seen.problem:
        yield LOOK, f"{seen.time}: cannot {seen.problem}; {seen.remedy}", False, False
    for engine in seen.engines:
        if engine.serves is not None:
            yield engine.name, _engine(engine, by_cdi=seen.by_cdi), engine.serves, False
        if engine.refusal is not None:
            yield engine.name, str(engine.refusal), False, True
    if seen.generation is not None:
        yield GPU_KIND, str(seen.generation), False, True
    if seen.doing:
        yield "repair", f"under way since {seen.time}: {', '.join(seen.doing)}", True, True


def _engine(engine: EngineSeen, *, by_cdi: bool) -> str:
    if engine.serves:
        return f"{'takes devices by CDI' if by_cdi else 'serves our runtimes'}, since {engine.since}"
    return (
        f"did not serve our runtimes at the last look ({engine.differs}), since {engine.since}: {RECONCILE}"
    )


def last_act(held: Record) -> Iterator[tuple[str, str, bool]]:
    """Yield what the last install or undo has left unfinished, or could not do."""
    nothing = replace(held, failed=None).empty
    if held.published and nothing:
        yield (
            ", ".join(map(str, held.published)),
            "told of an install that failed; nothing is installed",
            False,
        )
    # What is told of an install that failed holds nothing of the node.
    rolled_back = nothing and (held.failed is not None or bool(held.published))
    if not held.finished and not rolled_back:
        state = "the last install or undo was cut short; run install or uninstall again"
        yield "unfinished", state, False
    if held.left and held.finished:
        state = f"did not give everything back ({held.left}): run uninstall again, or install"
        yield "last undo", state, False
    if held.failed is not None:
        yield "last plan", f"failed and is not tried again as it is: {held.failed.problem}", False


def document(seen: Seen | None) -> dict[str, Any] | None:
    """Return the last look for programs; None where there was none."""
    if seen is None:
        return None
    return {
        "time": seen.time,
        "pid": seen.pid,
        "current": seen.current,
        "number": seen.number,
        "asked": seen.asked,
        "did": list(seen.did),
        "code": seen.code,
        "problem": seen.problem,
        "remedy": seen.remedy,
        "unmade": seen.unmade,
        "engines": [
            {
                "name": each.name,
                "serves": each.serves,
                "since": each.since,
                "differs": each.differs,
                "refused": each.refused,
            }
            for each in seen.engines
        ],
    }


def not_proven(host: Host, pid_file: PurePosixPath, held: Record | None, seen: Seen | None) -> str:
    """Return why a node is not ready that has nothing else to say against it."""
    if held is None:
        return "nothing is installed: wait for run to finish, or see its log"
    if not is_held_pidfile(str(host.local_path(pid_file))):
        return (
            f"no run waits on this node (nobody holds {pid_file}): install alone needs none; else start run, "
            "or see the log of the last one"
        )
    unasked = [each.name for each in seen.engines if each.serves is None] if seen and seen.current else []
    if unasked:
        return f"nobody asked {' or '.join(unasked)} what it serves (it does not answer, or has an OCI hook)"
    proof = "take devices by CDI" if held.cdi else "serve our runtimes"
    return f"run has not proven yet that the engines {proof}: wait, or see its log"
