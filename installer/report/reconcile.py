"""Ask the ``run`` that waits on this node to look now, and tell what came of it."""

import signal
import sys
import time
from typing import Final

from installer.errors import Exit, InstallerError
from installer.host import locks, supervision
from installer.host.files import Host
from installer.lifecycle import readiness
from installer.lifecycle.installation import list_last_check
from installer.lifecycle.readiness import LastCheck
from installer.model.files import dumps
from installer.model.options import Options
from installer.report import status

ANSWER_S: Final = 300.0  # an engine that restarts a control plane takes its time
SOON_S: Final = 2.0
POLL_S: Final = 0.05


def reconcile(options: Options, *, as_json: bool) -> Exit:
    """Print what the ``run`` that waits has found and done, and return 0 where all is well.

    Raises:
        InstallerError: it could not put the node right, or did not answer.
    """
    host = Host.under(options.host_root, options.mounts)
    sent_s = readiness.now_s()
    pid = locks.send(host.local_path(options.pid_file), signal.SIGHUP)
    if pid is None:
        sys.stdout.write(f"no run waits on this node (nobody holds {options.pid_file}): use install\n")
        return Exit.NO_RUN_WAITS
    answer = _await_answer(host, options, pid, sent_s)
    refusals = (engine.refusal for engine in answer.engines)
    problems = [each for each in (answer.error, *refusals, answer.generation) if each is not None]
    if as_json:
        sys.stdout.write(dumps(status.check_document(answer), indent=2).decode())
        return Exit.FAILED if problems else Exit.OK
    if answer.error is None:
        sys.stdout.writelines(f"done: {step}\n" for step in answer.did)
        sys.stdout.writelines(f"{line.what}: {line.state}\n" for line in list_last_check(answer))
    for problem in problems:
        raise problem
    sys.stdout.write("repaired\n" if answer.did else "nothing to do\n")
    return Exit.OK


def _await_answer(host: Host, options: Options, pid: int, sent_s: float) -> LastCheck:
    """Return the first check that was asked for and that began after ``sent_s``, once it is over."""
    written: set[str] = set()

    def write_once(text: str) -> None:
        if text not in written:  # to stderr: an engine that is restarted ends the kubectl exec that it serves
            written.add(text)
            sys.stderr.write(text)

    while readiness.now_s() < sent_s + ANSWER_S:
        supervision.raise_if_stopped()  # the stop of CRI-O's unit waits 90 s for an exec that does not end
        found = readiness.read_check(host, options.state_file)
        if found is not None and found.asked and found.began_s >= sent_s:
            if not found.doing:
                return found
            write_once(f"under way: {', '.join(found.doing)}\n")
        if readiness.now_s() > sent_s + SOON_S:
            write_once(
                f"asked run (pid {pid}) to look at the node, which takes seconds; longer where an engine, "
                "or a GPU that nvidia-ctk asks, does not answer\n"
            )
        if locks.holder_of(host.local_path(options.pid_file)) != pid:
            raise InstallerError(
                "reconcile (the run that waited has ended)",
                remedy="see its log, then start it again, or use install",
                code="no-answer",
            )
        time.sleep(POLL_S)
    raise InstallerError(
        f"reconcile (pid {pid} has not answered within {ANSWER_S:g} s)",
        remedy="see its log: it may still be at work",
        code="no-answer",
    )
