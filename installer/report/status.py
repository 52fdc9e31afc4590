"""What is installed, drifted or pending, for people and for programs; ``reconcile`` has it looked at now."""

import sys
import time
from signal import SIGHUP
from typing import Annotated, Final, Literal

from msgspec import Struct, convert
from msgspec.structs import replace

from installer.errors import Exit, InstallerError
from installer.host import locks, supervision
from installer.host.files import Host
from installer.lifecycle import installation_report, readiness
from installer.model.facts import Record
from installer.model.files import dumps, says
from installer.model.options import Options

Mode = Literal["runtime", "cdi"]
ANSWER_S: Final = 300.0  # an engine that restarts a control plane takes its time
WORKS: Final = "run has not ended its first install, or its undo: wait, or see its log"
SOON_S: Final = 2.0
POLL_S: Final = 0.05


class EngineDocument(Struct, frozen=True):
    """One engine at that look."""

    name: str
    serves: Annotated[bool | None, says("Whether it served our runtimes; null where it was not asked.")]
    since: Annotated[str, says("Since when that is so, in UTC.")]
    differs: Annotated[str, says("What it served otherwise.")]
    refused: Annotated[str, says('Why its next start would fail, though it serves now; "" where not.')]


class CheckDocument(Struct, frozen=True):
    """A look at the node."""

    time: Annotated[str, says("When, in UTC.")]
    pid: Annotated[int, says("The process of run, in its pid namespace.")]
    current: Annotated[bool, says("Whether that process still runs, and so watches the node.")]
    number: Annotated[int, says("How many checks there have been in this boot.")]
    asked: Annotated[bool, says("Whether it was asked for, by reconcile or HUP.")]
    did: Annotated[tuple[str, ...], says("The steps by which it has repaired the node.")]
    code: Annotated[str, says('What kind of problem there is (docs/troubleshooting.md), "" for none.')]
    problem: Annotated[str, says('What could not be done; "" where all was as installed.')]
    remedy: Annotated[str, says("What to do about it.")]
    unmade: Annotated[str, says('How nvidia-ctk failed although a driver is loaded; "" where not.')]
    engines: tuple[EngineDocument, ...]


class HeldDocument(Struct, frozen=True):
    """One thing that is held."""

    what: Annotated[str, says("A path, an engine, or what it is about.")]
    state: Annotated[str, says("How it is, as a sentence for people.")]
    good: bool


class StatusDocument(Struct, frozen=True):
    """How the node is."""

    installed: Annotated[bool, says("Whether there is a ledger: without one the exit code is 3.")]
    ready: Annotated[bool, says("Whether run has verified the engines, and nothing held is against it.")]
    why: Annotated[str, says('Why it is not ready, in one sentence; "" where it is.')]
    mode: Annotated[Mode | None, says("How containers get GPUs, CDI with NRI too; null: nothing installed.")]
    engines: Annotated[tuple[str, ...], says("Those configured, or that take devices by CDI as they are.")]
    held: Annotated[tuple[HeldDocument, ...], says("What is held; exit code 1 if one is not good.")]
    look: Annotated[CheckDocument | None, says("What run saw at its last check; null without one.")]


def show_status(options: Options, *, ready: bool, as_json: bool, deep: bool) -> Exit:
    """Print what is held, or why ``run`` is not ``ready``; return 0 if all is good, 1 if not, 3 if none."""
    host = Host.under(options.host_root, options.mounts)
    found = installation_report.read_installation(host, options, deep=deep)
    record, seen = found.record, found.last_check
    unfinished = record and not (record.finished or (seen and seen.current))
    if unfinished and locks.is_pidfile_locked(host.local_path(options.pid_file)):
        lines = [replace(each, state=WORKS) if each.what == "unfinished" else each for each in found.lines]
        found = replace(found, lines=tuple(lines))
    reason = found.obstacle
    if not (reason or readiness.is_ready(host, options.ready_file, options.pid_file)):
        reason = installation_report.explain_unproven(host, options.pid_file, record, seen)
    if ready:
        sys.stdout.write(f"{reason}\n" if reason else "")  # Kubernetes shows it: the event of a failed probe
        return Exit.FAILED if reason else Exit.OK
    # How engines were set up: nri is cdi with a plugin beside run, whose lines tell of it.
    mode: Mode | None = None
    if record and not record.empty:
        mode = "cdi" if record.cdi else "runtime"
    engines = record.served if record else ()
    if as_json:
        held = convert(found.lines, tuple[HeldDocument, ...], from_attributes=True)
        look = convert(seen.spoken, CheckDocument, from_attributes=True) if seen else None
        document = StatusDocument(record is not None, not reason, reason, mode, engines, held, look)
        sys.stdout.write(dumps(document, indent=2).decode())
    elif record is None and not found.lines:
        sys.stdout.write("nothing is installed\n")
    else:
        width = max((len(each.what) for each in found.lines), default=0)
        for each in sorted(found.lines, key=lambda each: each.good):
            sys.stdout.write(f"{'ok ' if each.good else 'BAD'} {each.what:<{width}}  {each.state}\n")
        above = "no" if found.obstacle else f"no: {reason}"  # an obstacle stands among the lines
        words = f"engines: {', '.join(engines) or 'none'}\nready: {above if reason else 'yes'}\n"
        sys.stdout.write(f"mode: {mode or 'none'}\n{words}")
    if record is None and not found.lines:
        return Exit.NOTHING_INSTALLED
    return Exit.OK if all(each.good for each in found.lines) else Exit.FAILED


def alive(options: Options) -> Exit:
    """Return 0 where ``run`` holds its pidfile, else 1."""
    host = Host.under(options.host_root, options.mounts)
    return Exit.OK if locks.is_pidfile_locked(host.local_path(options.pid_file)) else Exit.FAILED


def reconcile(options: Options, *, as_json: bool) -> Exit:
    """Have the ``run`` that waits look now, print what it did; raise where that failed or no answer came."""
    host = Host.under(options.host_root, options.mounts)
    sent_s = time.monotonic()
    pid = locks.send(host.local_path(options.pid_file), SIGHUP)
    if pid is None:
        sys.stdout.write(f"no toolkit-installer run waits ({options.pid_file} is not locked): use install\n")
        return Exit.NO_RUN_WAITS
    answer = _await_answer(host, options, pid, sent_s)
    refusals = (engine.refusal for engine in answer.engines)
    problems = [each for each in (answer.error, *refusals, answer.generation) if each is not None]
    if as_json:
        look = convert(answer.spoken, CheckDocument, from_attributes=True)
        sys.stdout.write(dumps(look, indent=2).decode())
        return Exit.FAILED if problems else Exit.OK
    if answer.error is None:
        sys.stdout.writelines(f"done: {step}\n" for step in answer.did)
        for line in installation_report.list_last_check(answer, Record()):
            sys.stdout.write(f"{line.what}: {line.state}\n")
    for problem in problems:
        raise problem
    sys.stdout.write("repaired\n" if answer.did else "nothing to do\n")
    return Exit.OK


def _await_answer(host: Host, options: Options, pid: int, sent_s: float) -> readiness.LastCheck:
    """Return the first check that was asked for and that began after ``sent_s``, once it is over."""
    written: set[str] = set()

    def write_once(text: str) -> None:
        if text not in written:  # to stderr: an engine that is restarted ends the kubectl exec that it serves
            written.add(text)
            sys.stderr.write(text)

    while time.monotonic() < sent_s + ANSWER_S:
        supervision.raise_if_stopped()  # the stop of CRI-O's unit waits 90 s for an exec that does not end
        found = readiness.read_check(host, options.state_file)
        if found is not None and found.asked and found.began_s >= sent_s:
            if not found.doing:
                return found
            write_once(f"under way: {', '.join(found.doing)}\n")
        if time.monotonic() > sent_s + SOON_S:
            longer = "longer where an engine, or a GPU that nvidia-ctk asks, does not answer"
            write_once(f"asked run (pid {pid}) to check the node, which takes seconds; {longer}\n")
        if locks.holder_of(host.local_path(options.pid_file)) != pid:
            remedy = "see its log, then start it again, or use install"
            raise InstallerError("reconcile (the run that waited has ended)", remedy=remedy, code="no-answer")
        time.sleep(POLL_S)
    problem = f"reconcile (pid {pid} has not answered within {ANSWER_S:g} s)"
    raise InstallerError(problem, remedy="see its log: it may still be at work", code="no-answer")
