"""``run`` after its options are read and its locks are held: it starts children that act, and waits.

The process never becomes another program. Children that install, check and stop hold the ledger's lock with
it, and end when it ends. The NRI plugin and the metrics server run during the wait. Arguments: see
``supervision.become_supervisor``.
"""

import os
import signal
from contextlib import suppress
from select import select
from time import gmtime, monotonic, sleep, strftime

from installer.watch import COMPARE_S, METRICS, NRI, HeldLock, NextCheck, Watch

STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
HANDLED = {*STOP, signal.SIGHUP, signal.SIGCHLD}
# Exit codes, as errors.Exit.
OK = 0
LOCKED = 3
UNDO_INCOMPLETE = 4
# Exit codes of children only.
STOPPED = 64  # the child has stopped between two steps
HANDED_OVER = 65  # a unit of systemd finishes the undo
WAITING = 66  # the child has answered what to wait for: it is started again then
# The tries of an undo; the second try leaves out everything optional.
FIRST_TRY = "first"
AGAIN = "again"
# A child's mark of its progress, in front of its answer.
IN_STEP = b"1"
BETWEEN_STEPS = b"0"
# Wait statuses of a child without an end, in the form of the kernel.
NOT_STARTED = 127 << 8  # exit code 127
LEFT_BEHIND = int(signal.SIGKILL)  # death by this signal
HUNG = "killed because it hung"  # the end of a child that gave no sign of life
# A pause doubles, except after a child that has run steadily.
FIRST_S = 0.1
LONGEST_S = 60.0
STEADY_S = 60.0
ASK_S = 60.0  # between two looks for a sign of life
ANSWER_S = 10.0  # for a sign of life
STOPS_S = 0.1
END_S = 5.0  # for a sidecar to end, before it is killed
POLL_S = 0.01
KILL_S = 3.0  # from the stop of a child to its kill
GONE_S = 2.0  # from the kill of a child until it is left behind


class Sidecar:
    """A child beside the waiting ``run``; it is started again after an end or a hang.

    A ``probed`` child is killed without a sign of life. A child that does not hang wakes every other second,
    and the kernel counts its waits: a count that stays the same for ``ANSWER_S`` shows a hang.
    """

    def __init__(self, verb: str, run: "Supervisor", *, probed: bool) -> None:
        self.verb = verb
        self._run = run
        self._probed = probed
        self.pid = 0  # 0: it does not run
        self.ends = 0
        self.due = 0.0  # the time of its next start
        self._ended = "-"  # how it has ended the last time
        self._began = 0.0
        self._pause_s = 0.0
        self._ask_at = 0.0  # the time of the next look for a sign of life
        self._waits = ""  # the count of its waits at the last look, while an answer is awaited

    def keep(self, now: float) -> None:
        """Start a due child; kill a child without a sign of life."""
        if not self.pid and now >= self.due:
            self.pid = self._run.start(self.verb, self._ended)
            self._began = now
            self.due = now + LONGEST_S
            self._ended = "-"
            self._ask_at = now + ASK_S
            self._waits = ""
        elif self.pid and self._probed and now >= self._ask_at:
            self._look_for_life(now)

    def _look_for_life(self, now: float) -> None:
        """Compare the count of the child's waits with the last one; kill the child if both are the same."""
        waits = _waits(self.pid)
        last_waits = self._waits
        # If this process is late, both may have been suspended, as by a pause of their container.
        late = now - self._ask_at > ANSWER_S
        if waits == last_waits and not late:
            self._ended = HUNG
            os.kill(self.pid, signal.SIGKILL)
        if last_waits:
            self._waits = ""
            self._ask_at = now + ASK_S
        else:
            self._waits = waits
            self._ask_at = now + ANSWER_S

    def note(self, status: int, now: float) -> None:
        """Handle a stop or an end of the child, by the ``status`` of the kernel."""
        if os.WIFSTOPPED(status):
            if not self._waits:
                self._ask_at = now + STOPS_S
            return
        if self._ended != HUNG:
            self._ended = _describe_end(status)
        self.ends += 1
        is_steady = now - self._began >= STEADY_S
        if is_steady or not self._pause_s:
            self._pause_s = FIRST_S
        else:
            self._pause_s = min(2 * self._pause_s, LONGEST_S)
        self.pid = 0
        self.due = now + self._pause_s

    def end(self) -> None:
        """End the child; return after its end, or after the deadline of a kill."""
        number = signal.SIGTERM
        deadline = monotonic() + END_S
        while self.pid and monotonic() < deadline + END_S:
            os.kill(self.pid, number)
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
                return
            if monotonic() > deadline:
                number = signal.SIGKILL
            sleep(POLL_S)


class Supervisor:
    """The process of ``run``."""

    def __init__(self, words: list[str]) -> None:
        pidfile, pid_fd, lock, lock_fd, options, highest_exit, hung_s, *more = words
        sidecars, log_format, count, *rest = more
        leftover_count = int(count)
        self._pidfile = HeldLock(pidfile, int(pid_fd), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._lock = HeldLock(lock, int(lock_fd), os.O_RDONLY)
        self._options = os.open(options, os.O_RDONLY)  # open, because its name may be removed
        self._highest_exit = int(highest_exit)  # of this process
        self._hung_s = float(hung_s)  # the longest time of a child other than the install
        self._ready = pidfile.rpartition("/")[0] + "/ready"
        self._leftovers = rest[:leftover_count]  # files to remove at the end
        self._command = rest[leftover_count:]  # the beginning of the command of a child
        self._pid = os.getpid()
        self._sidecars = [Sidecar(verb, self, probed=verb == NRI) for verb in sidecars.split()]
        self._log_format = log_format
        self._stop_at = 0.0  # when a stop was requested
        self._asked = False  # a check was requested
        self._kept_verbs = [METRICS]  # of the sidecars that are kept running
        self._acting = 0  # the pid of the child that acts
        self._status = 0  # the exit status of the last child that acted
        self._next_check = NextCheck(Watch(), 0.0)  # replaced at the answer of each check
        self._answer = b""  # of the last check

    def run(self) -> int:
        """Install, wait and check until a stop; return the exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        code = self._act("install")
        if code in {OK, WAITING}:
            code = self._wait(installed=code == OK) or self._stop()
        elif code == STOPPED or (self._stop_at and code != LOCKED):
            code = self._stop()  # also if the install has failed: an earlier one is undone
        self._end_sidecars(METRICS, NRI)
        if code == HANDED_OVER:
            if self._highest_exit < UNDO_INCOMPLETE:  # NVIDIA's command line has codes for errors only
                return OK
            return UNDO_INCOMPLETE
        if not OK <= code <= UNDO_INCOMPLETE:  # the install was killed, or not started: memory may be short
            _explain_lost("install", code, "run it again, or run uninstall")
            code = UNDO_INCOMPLETE
        return min(code, self._highest_exit)

    def _wait(self, *, installed: bool) -> int:
        """Wait and check until a stop; return OK, or the code of a child with which ``run`` ends.

        Until the node is ``installed`` each check is one more try of the install.
        """
        again = False
        self._learn()
        while True:
            self._await_check()
            if self._stop_at:
                return OK
            asked = self._asked
            self._asked = False
            reason = "asked" if asked or again else "check"
            code = self._act(reason) if installed else self._act("install", reason)
            if code == LOCKED:  # the lock was lost to another instance
                return LOCKED
            if self._stop_at:
                return OK
            if not installed and code not in {OK, WAITING, STOPPED}:
                return code
            installed = installed or code == OK
            # A killed child leaves the user's request without an answer: check once more, but only once.
            again = asked and not OK <= code <= WAITING
            if code in {OK, WAITING}:
                self._learn()
            else:
                _remove(self._ready)
                self._next_check.postpone(monotonic())

    def _await_check(self) -> None:
        """Wait until a check begins or a stop is requested; keep the locks of pidfile and ledger."""
        while not self._stop_at:
            self._sleep(self._next_check.pause_s(monotonic()))
            if self._pidfile.renew():
                os.write(self._pidfile.fd, b"%d\n" % self._pid)
            self._lock.renew()
            if self._stop_at or self._asked or self._next_check.has_come(monotonic()):
                return

    def _stop(self) -> int:
        """Have a child carry out the stop; the NRI plugin ends last, to refuse requests until then."""
        self._stop_at = self._stop_at or monotonic()
        self._kept_verbs = []
        self._end_sidecars(METRICS)
        code = self._act("stop", str(self._stop_at), FIRST_TRY)
        if not OK <= code <= HANDED_OVER:  # the child was killed, or not started: memory may be short
            self.log("undo started again", "stop", "without a search of the node, and without waits")
            code = self._act("stop", str(self._stop_at), AGAIN)
        self._end_sidecars(NRI)
        _remove(*self._leftovers)
        if code in {OK, LOCKED, HANDED_OVER}:
            return code
        if code != UNDO_INCOMPLETE:
            _explain_lost("undo", code, "put the program back if it is gone, then run uninstall")
        return UNDO_INCOMPLETE

    def _end_sidecars(self, *verbs: str) -> None:
        for sidecar in self._sidecars:
            if sidecar.verb in verbs:
                sidecar.end()

    def _learn(self) -> None:
        """Take over a child's answer: when the next check begins, and which sidecars run until then."""
        watch = Watch.decode(self._answer)
        self._next_check = NextCheck(watch, monotonic())
        self._kept_verbs = watch.sidecars.split()

    def _act(self, verb: str, *more: str) -> int:
        """Have a child act, and return its exit code."""
        began = monotonic()
        answer = os.memfd_create("answer")
        self._acting = self.start(verb, *more, answer=answer)
        self._status = NOT_STARTED
        while self._acting and not self._must_end(verb, began):
            self._sleep(COMPARE_S)
        was_killed = bool(self._acting) and self._end_acting(answer)
        self._answer = os.pread(answer, os.fstat(answer).st_size, len(IN_STEP))
        os.close(answer)
        if os.WIFSIGNALED(self._status):
            self.log("child killed", verb, _describe_end(self._status))
        if was_killed and self._stop_at:
            return STOPPED
        return os.waitstatus_to_exitcode(self._status)

    def _must_end(self, verb: str, began: float) -> bool:
        """Tell whether the child that acts has to end: a stop is pending, or the child takes too long."""
        if verb == "stop":
            return False
        if self._stop_at:
            return True
        return verb != "install" and monotonic() > began + self._hung_s

    def _end_acting(self, answer: int) -> bool:
        """End the child that acts: tell it to end, then kill it, then leave it behind.

        Return whether it had to be killed. A child in a step is not killed. Between two steps a child only
        reads; one that does not end then may wait for a disk that does not answer.
        """
        os.kill(self._acting, signal.SIGTERM)
        os.kill(self._acting, signal.SIGCONT)
        _remove(self._ready)
        self._await_end(KILL_S, answer)
        if not self._acting:
            return False
        os.kill(self._acting, signal.SIGKILL)
        self._await_end(GONE_S, answer)
        if self._acting:
            # The kernel waits for a disk; after that the killed child does nothing any more.
            self._acting = 0
            self._status = LEFT_BEHIND
        return True

    def _await_end(self, seconds: float, answer: int) -> None:
        """Wait for the end of the child that acts, for ``seconds`` after its last step at most."""
        until = monotonic() + seconds
        while self._acting and monotonic() <= until:
            self._sleep(STOPS_S)
            if os.pread(answer, 1, 0) == IN_STEP:
                until = monotonic() + seconds

    def start(self, verb: str, *more: str, answer: int = -1) -> int:
        """Start a child; a child with an ``answer`` holds the ledger's lock as well."""
        pid = -1
        try:
            pid = os.fork()
            if pid:
                return pid
            os.setpgid(0, 0)  # signals of a terminal go to this process only
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            fds = [fd for fd in (answer, self._lock.fd) if answer >= 0 and fd >= 0]
            for fd in (*fds, self._options):
                os.set_inheritable(fd, True)
            plugin_ends = [str(sidecar.ends) for sidecar in self._sidecars if sidecar.verb == NRI] or ["0"]
            words = [verb, f"/proc/self/fd/{self._options}", " ".join(map(str, fds)), *plugin_ends]
            # The pid is an argument, because a child that asks for its parent may already have another one.
            words.append(str(self._pid))
            os.execv(self._command[0], [*self._command, *words, *more])  # noqa: S606 - no shell is meant to be there
        except OSError as error:  # no memory, or too many processes
            self.log("child not started", verb, str(error.strerror))
        finally:
            if not pid:
                os._exit(127)
        return 0

    def log(self, event: str, verb: str, reason: str) -> None:
        """Log an event for a child, in the form of ``host.events``."""
        if self._log_format == "json":
            fields = f'"child": "{verb}", "reason": "{reason}"'
            now = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
            _write(f'{{{fields}, "event": "{event}", "level": "warning", "timestamp": "{now}"}}')
        else:
            _write(f'warning: {event} child={verb} reason="{reason}"')

    def _sleep(self, seconds: float) -> None:
        """Keep the sidecars, sleep ``seconds`` or until a signal, and reap ended children.

        As pid 1 this process reaps the children of all others, too.
        """
        for sidecar in self._sidecars:
            if sidecar.verb in self._kept_verbs:
                sidecar.keep(monotonic())
                wait_s = COMPARE_S if sidecar.pid else sidecar.due - monotonic()
                seconds = min(seconds, wait_s)
        received = signal.sigtimedwait(HANDLED, max(0.0, seconds))
        if received and received.si_signo in STOP:
            self._stop_at = self._stop_at or monotonic()
        if received and received.si_signo == signal.SIGHUP:
            self._asked = True
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if not pid:
                    break
                self._note(pid, status)

    def _note(self, pid: int, status: int) -> None:
        """Handle a child's end or stop."""
        for sidecar in self._sidecars:
            if sidecar.pid != pid:
                continue
            sidecar.note(status, monotonic())
            if os.WIFSIGNALED(status):
                self.log("child killed", sidecar.verb, _describe_end(status))
            if sidecar.verb == NRI and not os.WIFSTOPPED(status):
                self._next_check.due = 0.0  # a node without its plugin is not ready
        if pid == self._acting and not os.WIFSTOPPED(status):
            self._acting = 0
            self._status = status


def _describe_end(status: int) -> str:
    return _describe_code(os.waitstatus_to_exitcode(status))


def _describe_code(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _explain_lost(act: str, code: int, remedy: str) -> None:
    """Tell that a child has ended without an outcome."""
    problem = f"cannot finish the {act} (it has ended with {_describe_code(code)}), so what is left is kept"
    _write(f"toolkit-installer: {problem}; {remedy}")


def _write(line: str) -> None:
    with suppress(OSError):  # the log has no reader any more
        if select([], [2], [], 0.5)[1]:
            os.write(2, f"{line}\n".encode())


def _remove(*paths: str) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _waits(pid: int) -> str:
    """Return the kernel's count of the waits of a process."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return file.read().partition("\nvoluntary_ctxt_switches:")[2].split()[0]
