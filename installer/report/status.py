"""``status``: report what is installed, drifted or pending. ``reconcile``: have ``run`` check now."""

import sys
import time
from signal import SIGHUP
from typing import Annotated, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from installer.change.lost_ledger import find_install_dir
from installer.errors import Exit, InstallerError
from installer.host import locks, supervision
from installer.host.files import Host
from installer.lifecycle import installation_report, readiness
from installer.lifecycle.last_check import LastCheck, Problem, read_check
from installer.model.facts import Record
from installer.model.files import dumps, says
from installer.model.options import Options

Mode = Literal["runtime", "cdi"]
ANSWER_S: Final = 300.0  # an engine that restarts a control plane takes its time
AT_WORK: Final = "an install or an undo is at work: wait, or see its log"
WORKS: Final = "run is still at its first install, or at its undo: wait, or see its log"
SOON_S: Final = 2.0
POLL_S: Final = 0.05
NO_PROBLEM: Final = Problem(code="", text="", remedy="")


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
    changed: Annotated[
        str | None, says("When the file was changed last, by whomever, in UTC; null if it is about no file.")
    ]


class StatusDocument(Struct, frozen=True):
    """How the node is."""

    installed: Annotated[
        bool, says("Whether the ledger holds anything: else, without leftovers, the exit code is 3.")
    ]
    ready: Annotated[bool, says("Whether run has verified the engines, and nothing held is against it.")]
    why: Annotated[str, says('Why it is not ready, in one sentence; "" where it is.')]
    mode: Annotated[Mode | None, says("How containers get GPUs, CDI with NRI too; null: nothing installed.")]
    engines: Annotated[tuple[str, ...], says("Those configured, or that take devices by CDI as they are.")]
    held: Annotated[tuple[HeldDocument, ...], says("What is held; exit code 1 if one is not good.")]
    look: Annotated[CheckDocument | None, says("What run saw at its last check; null without one.")]


def show_status(options: Options, *, ready: bool, as_json: bool, deep: bool) -> Exit:
    """Print the installed things and their states, or, for a probe, why the node is not ready.

    Args:
        options: The options of the command.
        ready: Print the reason only.
        as_json: Print a document for programs.
        deep: Compare the content of installed programs, too.

    Returns:
        OK if all is good, NOTHING_INSTALLED if the node holds nothing of ours, else FAILED. A failed plan
        that the ledger remembers is nothing installed.
    """
    host = Host.under(options.host_root, options.mounts)
    found = installation_report.read_installation(host, options, deep=deep)
    record = found.record
    last_check = found.last_check
    is_watched = last_check is not None and last_check.current
    unfinished = record is not None and not record.finished and not is_watched
    if unfinished:
        state = ""
        if locks.is_pidfile_locked(host.local_path(options.pid_file)):
            state = WORKS
        elif locks.is_directory_locked(host, find_install_dir(host, options, tell=False).layout.home):
            # run locks its pidfile a moment after the ledger; install and uninstall lock the ledger only.
            state = AT_WORK
        if state:
            lines = tuple(_explain_unfinished(line, state) for line in found.lines)
            found = replace(found, lines=lines)

    reason = found.obstacle
    if not reason and not readiness.is_ready(host, options.ready_file, options.pid_file):
        reason = installation_report.explain_unproven(host, options.pid_file, record, last_check)
    if ready:
        if not reason:
            return Exit.OK
        sys.stdout.write(f"{reason}\n")  # Kubernetes shows the reason: the event of a failed probe
        return Exit.FAILED

    if as_json:
        document = _make_document(found, reason)
        sys.stdout.write(dumps(document, indent=2).decode())
    elif found.holds_nothing:
        sys.stdout.write("nothing is installed\n")
        sys.stdout.writelines(f"{line.subject}: {line.state}\n" for line in found.lines)
    else:
        _print_text(found, reason)
    if found.holds_nothing:
        return Exit.NOTHING_INSTALLED
    return Exit.OK if all(line.good for line in found.lines) else Exit.FAILED


def _explain_unfinished(line: installation_report.Line, state: str) -> installation_report.Line:
    """Return a line of status while another process is at work, as ``state`` says."""
    if line.subject == "unfinished":
        return replace(line, state=state)
    return line


def _find_mode(record: Record | None) -> Mode | None:
    """Return the mode of the install; NRI counts as cdi, and the plugin's lines tell of NRI."""
    if record is None or record.empty:
        return None
    return "cdi" if record.cdi else "runtime"


def _list_engines(record: Record | None) -> tuple[str, ...]:
    return record.served if record else ()


def _make_document(found: installation_report.Installation, reason: str) -> StatusDocument:
    """Return the document of ``status --json``; ``reason`` is the reason why the node is not ready."""
    check: CheckDocument | None = None
    if found.last_check is not None:
        check = _describe_check(found.last_check)
    return StatusDocument(
        installed=found.record is not None and not found.holds_nothing,
        ready=not reason,
        why=reason,
        mode=_find_mode(found.record),
        engines=_list_engines(found.record),
        held=tuple(
            HeldDocument(line.subject, line.state, line.good, line.changed or None) for line in found.lines
        ),
        look=check,
    )


def _describe_check(check: LastCheck) -> CheckDocument:
    """Return the document of a check, with the problems in whole sentences."""
    problem = check.problem or NO_PROBLEM
    engines: list[EngineDocument] = []
    for engine in check.engines:
        document = EngineDocument(
            engine.name, engine.serves, engine.since, engine.difference, engine.start_failure
        )
        engines.append(document)
    return CheckDocument(
        time=check.time,
        pid=check.pid,
        current=check.current,
        number=check.number,
        asked=check.asked,
        did=check.repair.done,
        code=problem.code,
        problem=_spell_problem(problem),
        remedy=problem.remedy,
        unmade=_spell_problem(check.specification_problem or NO_PROBLEM),
        engines=tuple(engines),
    )


def _spell_problem(problem: Problem) -> str:
    """Return a problem as a sentence, "" for no problem."""
    return f"cannot {problem.text}" if problem.text else ""


def _print_text(found: installation_report.Installation, reason: str) -> None:
    """Print the bad lines, the good lines, the mode, the engines, and whether the node is ready."""
    width = max((len(line.subject) for line in found.lines), default=0)
    bad_lines = [line for line in found.lines if not line.good]
    good_lines = [line for line in found.lines if line.good]
    for line in (*bad_lines, *good_lines):
        level = "ok " if line.good else "BAD"
        changed = f"; last changed {line.changed}" if line.changed else ""
        sys.stdout.write(f"{level} {line.subject:<{width}}  {line.state}{changed}\n")

    if not reason:
        readiness_text = "yes"
    elif found.obstacle:
        readiness_text = "no"  # one of the lines is the obstacle
    else:
        readiness_text = f"no: {reason}"
    engines = ", ".join(_list_engines(found.record))
    sys.stdout.write(f"mode: {_find_mode(found.record) or 'none'}\n")
    sys.stdout.write(f"engines: {engines or 'none'}\nready: {readiness_text}\n")


def alive(options: Options) -> Exit:
    """Return OK if ``run`` holds its pidfile, else FAILED."""
    host = Host.under(options.host_root, options.mounts)
    return Exit.OK if locks.is_pidfile_locked(host.local_path(options.pid_file)) else Exit.FAILED


def reconcile(options: Options, *, as_json: bool) -> Exit:
    """Have the waiting ``run`` check the node now, and print its repairs.

    Raises:
        InstallerError: The check has failed, or ``run`` did not answer.
    """
    host = Host.under(options.host_root, options.mounts)
    sent_s = time.monotonic()
    pid = locks.send(host.local_path(options.pid_file), SIGHUP)
    if pid is None:
        instead = "toolkit-installer install checks and repairs the node"
        sys.stdout.write(f"no toolkit-installer run waits ({options.pid_file} is not locked); {instead}\n")
        return Exit.NO_RUN_WAITS

    check = _await_check(host, options, pid, sent_s)
    record = Record()
    if check.problem is not None:
        record = installation_report.read_installation(host, options).record or record
    # With --restart-mode none the node is as its owner wants it: status counts his restart as pending, too.
    is_pending = installation_report.is_left_to_owner(check, record) and not check.keeps_install
    problems = check.problems
    if is_pending:
        problems = replace(check, problem=None).problems
    if as_json:
        document = _describe_check(check)
        sys.stdout.write(dumps(document, indent=2).decode())
        return Exit.FAILED if problems else Exit.OK

    if check.problem is None or is_pending:
        sys.stdout.writelines(f"done: {step}\n" for step in check.repair.done)
        for line in installation_report.list_last_check(check, record):
            sys.stdout.write(f"{line.subject}: {line.state}\n")
    if problems:
        raise problems[0]
    if check.repair.done:
        sys.stdout.write("repaired\n")
    elif not is_pending:
        sys.stdout.write("nothing to do\n")
    return Exit.OK


def _await_check(host: Host, options: Options, pid: int, sent_s: float) -> LastCheck:
    """Return the finished check that a user's request has started.

    Args:
        host: The host.
        options: The options of the command.
        pid: The process of ``run``.
        sent_s: The time of the request: an earlier check is no answer.

    Raises:
        InstallerError: ``run`` has ended, or has not answered in time.
    """
    written: set[str] = set()

    def write_once(text: str) -> None:
        # To stderr: the restart of an engine ends the kubectl exec that the engine serves.
        if text not in written:
            written.add(text)
            sys.stderr.write(text)

    while time.monotonic() < sent_s + ANSWER_S:
        supervision.raise_if_stopped()  # the stop of CRI-O's unit waits 90 s for an exec that does not end
        check = read_check(host, options.state_file)
        if check is not None and check.asked and check.began_s >= sent_s:
            if not check.repair.under_way:
                return check
            write_once(f"under way: {', '.join(check.repair.under_way)}\n")
        if time.monotonic() > sent_s + SOON_S:
            longer = "longer if an engine, or a GPU that nvidia-ctk asks, does not answer"
            write_once(f"asked run (pid {pid}) to check the node, which takes seconds; {longer}\n")
        if locks.holder_of(host.local_path(options.pid_file)) != pid:
            remedy = "see its log, then start it again, or use install"
            raise InstallerError("reconcile (the run that waited has ended)", remedy=remedy, code="no-answer")
        time.sleep(POLL_S)

    problem = f"reconcile (pid {pid} has not answered within {ANSWER_S:g} s)"
    raise InstallerError(problem, remedy="see its log: it may still be at work", code="no-answer")
