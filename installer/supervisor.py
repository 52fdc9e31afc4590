"""``run``, once its options are read and its locks are held: starts what acts as children, and waits.

It never becomes anything else. Install, check and stop hold the ledger's lock with it, and end where it ends;
NRI plugin and metrics server run during the wait. Its words are those of ``supervision.become``.
"""

import os
import signal
from contextlib import suppress
from select import select
from time import gmtime, monotonic, sleep, strftime

from installer.watch import HeldLock, fingerprint

STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
HANDLED = {*STOP, signal.SIGHUP, signal.SIGCHLD}
OK, LOCKED, UNDO_INCOMPLETE = 0, 3, 4  # as errors.Exit
STOPPED, HANDED_OVER = 64, 65  # of a child alone: it has stopped between two steps; a unit undoes
FIRST_TRY, AGAIN = "first", "again"  # of an undo; the second one does only what it cannot do without
IN_STEP, BETWEEN_STEPS = b"1", b"0"  # a child's mark of what it does, ahead of its answer
HUNG = "killed, for it hung"  # how a child has ended that gave no sign of life
COMPARE_S, QUIET_S, UNQUIET_S, CHECK_S, HUNG_S = 2.0, 1.0, 10.0, 120.0, 300.0
FIRST_S, LONGEST_S, STEADY_S = 0.1, 60.0, 60.0  # a pause doubles, but for one after a child that has lasted
ASK_S, ANSWER_S, STOPS_S, END_S, POLL_S = 60.0, 10.0, 0.1, 5.0, 0.01
KILL_S, GONE_S = 3.0, 2.0  # from a stop of a child to its kill, and until one that was killed is left behind


class Kept:
    """A child that runs during the wait, and is started again when it has ended or hangs.

    One that is ``asked`` for a sign of life wakes every other second by itself: the kernel counts its waits.
    """

    def __init__(self, verb: str, run: "Supervisor", *, asked: bool) -> None:
        self.verb, self._run, self._asked = verb, run, asked
        self.pid, self.ends, self.due, self._ended = 0, 0, 0.0, "-"
        self._began, self._pause_s, self._ask_at, self._waits = 0.0, 0.0, 0.0, ""

    def keep(self, now: float) -> None:
        """Start it if it is due; end it if it gives no sign of life."""
        if not self.pid and now >= self.due:
            self.pid, self._began, self.due = self._run.start(self.verb, self._ended), now, now + LONGEST_S
            self._ended, self._ask_at, self._waits = "-", now + ASK_S, ""
        elif self.pid and self._asked and now >= self._ask_at:
            waits, before, late = _waits(self.pid), self._waits, now - self._ask_at > ANSWER_S
            # Where this comes late both may have been held up, as by a pause of their container.
            if waits == before and not late:
                self._ended = HUNG
                os.kill(self.pid, signal.SIGKILL)
            self._waits, self._ask_at = ("", now + ASK_S) if before else (waits, now + ANSWER_S)

    def note(self, status: int, now: float) -> None:
        """Take that the kernel tells of a stop or an end of it."""
        if os.WIFSTOPPED(status):
            self._ask_at = now + STOPS_S if not self._waits else self._ask_at
            return
        self._ended = HUNG if self._ended == HUNG else _describe_end(status)
        self.ends += 1
        pause_s = 0.0 if now - self._began >= STEADY_S else 2 * self._pause_s
        self._pause_s = min(pause_s or FIRST_S, LONGEST_S)
        self.pid, self.due = 0, now + self._pause_s

    def end(self) -> None:
        """End it, and return when it has ended, or cannot."""
        number, deadline = signal.SIGTERM, monotonic() + END_S
        while self.pid and monotonic() < deadline + END_S:
            os.kill(self.pid, number)
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
            number = signal.SIGKILL if monotonic() > deadline else number
            sleep(POLL_S)


class Supervisor:
    """One ``run``."""

    def __init__(self, words: list[str]) -> None:
        pidfile, pid_fd, lock, lock_fd, options, most, kept, form, left_count, *rest = words
        self._pidfile = HeldLock(pidfile, int(pid_fd), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._lock = HeldLock(lock, int(lock_fd), os.O_RDONLY)
        self._options = os.open(options, os.O_RDONLY)  # its name may be removed
        self._most, self._ready = int(most), pidfile.rpartition("/")[0] + "/ready"
        self._left = rest[: int(left_count)]
        self._command = rest[int(left_count) :]
        self._pid = os.getpid()
        self._kept = [Kept(verb, self, asked=verb == "nri") for verb in kept.split()]
        self._form = form
        # When a stop came, whether a check was asked for, whom to keep; who acts, and how the last one ended.
        self._stop_at, self._asked, self._serves, self._acting, self._status = 0.0, False, "metrics", 0, 0
        # When a check is due, until when none is, since when something differs, and when it last changed.
        self._due, self._rest, self._first, self._changed_at = 0.0, 0.0, 0.0, 0.0
        # The fingerprint to compare with, the last one, what a check has answered, and what is watched.
        self._before, self._last, self._answer, self._places = "", "", b"", list[str]()

    def run(self) -> int:
        """Install, wait and check until a stop; return the exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        code = self._act("install")
        if code in {OK, STOPPED}:
            code = (code == OK and self._wait()) or self._stop()
        self._end("metrics nri")
        if code == HANDED_OVER:  # NVIDIA's command line knows only errors, which this is none of
            return OK if self._most < UNDO_INCOMPLETE else UNDO_INCOMPLETE
        return min(code if OK <= code <= UNDO_INCOMPLETE else UNDO_INCOMPLETE, self._most)

    def _wait(self) -> int:
        """Wait and check until a stop; return OK, or the code of a check that ends this ``run``."""
        self._serves, pause_s, again = "metrics nri", 0.0, False
        self._learn()
        while not self._stop_at:
            self._turn(min(QUIET_S if self._first else COMPARE_S, self._due - monotonic()))
            if self._pidfile.renew():
                os.write(self._pidfile.fd, b"%d\n" % self._pid)
            self._lock.renew()
            if self._stop_at or not (self._asked or self._is_due(monotonic())):
                continue
            asked, self._asked = self._asked, False
            code = self._act("asked" if asked or again else "check")
            # Who asked gets no answer of a child that was killed: once more, and not again and again.
            again = asked and not OK <= code <= HANDED_OVER
            if code == LOCKED:  # the lock was lost, and another instance has it
                return LOCKED
            pause_s = min(2 * pause_s or QUIET_S, CHECK_S) if code else 0.0
            if code == OK:
                self._learn()
            else:
                _remove(self._ready)
                self._due, self._before = monotonic() + pause_s, self._last
        return OK

    def _stop(self) -> int:
        """Have a child do what a stop asks for; the NRI plugin ends last, so that a late wish is refused."""
        self._stop_at, self._serves = self._stop_at or monotonic(), ""
        self._end("metrics")
        code = self._act("stop", str(self._stop_at), FIRST_TRY)
        if not OK <= code <= HANDED_OVER:  # it was killed, or could not be started: memory may be short
            self.log("undo begun again", "stop", "without a search of the node, and without waits")
            code = self._act("stop", str(self._stop_at), AGAIN)
        self._end("nri")
        _remove(*self._left)
        if code not in {OK, LOCKED, UNDO_INCOMPLETE, HANDED_OVER}:
            problem = f"cannot finish the undo (it has ended with {code}), so what is left is kept"
            _write(f"toolkit-installer: {problem}; put the program back if it is gone, then run uninstall")
        return code if code in {OK, LOCKED, HANDED_OVER} else UNDO_INCOMPLETE

    def _end(self, verbs: str) -> None:
        for each in self._kept:
            if each.verb in verbs:
                each.end()

    def _learn(self) -> None:
        """Take what the last check has answered: what to compare with what, and when the next one is due."""
        self._before, due, rest, *self._places = os.fsdecode(self._answer).split("\0")
        now = monotonic()
        self._due, self._rest = now + min(float(due) or CHECK_S, CHECK_S), now + float(rest)
        self._last, self._first = "", 0.0

    def _is_due(self, now: float) -> bool:
        """Tell whether it is time for a check, or something has changed and no writer is left."""
        current = fingerprint(self._places)
        if current != self._last:
            self._last, self._changed_at = current, now
        self._first = 0.0 if current == self._before else self._first or now
        quiet = now - self._changed_at >= QUIET_S or now - self._first >= UNQUIET_S
        return now >= self._due or bool(self._first and quiet and now >= self._rest)

    def _act(self, verb: str, *more: str) -> int:
        """Have a child do something, and return its exit code.

        A stop is passed on to a child that installs or checks, and so is the end of its time. A child that
        does not end then is killed, unless it is in a step: it only reads, from a disk that does not answer.
        """
        began = monotonic()
        told = False
        patient_until = 0.0
        killed_at = 0.0
        answer = os.memfd_create("answer")
        self._acting, self._status = self.start(verb, *more, answer=answer), 127 << 8
        while self._acting:
            self._turn(STOPS_S if told else COMPARE_S)
            now = monotonic()
            late = self._stop_at or (verb != "install" and now > began + HUNG_S)
            if not self._acting or not late or verb == "stop":
                continue
            if not told:
                told = True
                os.kill(self._acting, signal.SIGTERM)
                os.kill(self._acting, signal.SIGCONT)
                _remove(self._ready)
            if not patient_until or os.pread(answer, 1, 0) == IN_STEP:
                patient_until = now + KILL_S
            elif not killed_at and now > patient_until:
                killed_at = now
                os.kill(self._acting, signal.SIGKILL)
            elif killed_at and now > killed_at + GONE_S:
                # The kernel waits for a disk; what the child would do after that it does not do any more.
                self._acting, self._status = 0, signal.SIGKILL
        self._answer = os.pread(answer, os.fstat(answer).st_size, len(IN_STEP))
        os.close(answer)
        if os.WIFSIGNALED(self._status):
            self.log("child killed", verb, _describe_end(self._status))
        if killed_at and self._stop_at:
            return STOPPED
        return os.waitstatus_to_exitcode(self._status)

    def start(self, verb: str, *more: str, answer: int = -1) -> int:
        """Start a child; one that answers holds the ledger's lock as well."""
        pid = -1
        try:
            if pid := os.fork():
                return pid
            os.setpgid(0, 0)  # what a terminal sends goes to us alone
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            fds = [fd for fd in (answer, self._lock.fd) if answer >= 0 and fd >= 0]
            for fd in (*fds, self._options):
                os.set_inheritable(fd, True)
            ends = [str(each.ends) for each in self._kept if each.verb == "nri"] or ["0"]
            # The pid as a word: a child that asked for its parent could already have got another one.
            words = [verb, f"/proc/self/fd/{self._options}", " ".join(map(str, fds)), *ends, str(self._pid)]
            os.execv(self._command[0], [*self._command, *words, *more])  # noqa: S606 - no shell is meant to be there
        except OSError as error:  # no memory, no room for one more process
            self.log("child not started", verb, str(error.strerror))
        finally:
            if not pid:
                os._exit(127)
        return 0

    def log(self, event: str, verb: str, reason: str) -> None:
        """Log what a child cannot log itself, as ``host.events`` writes it."""
        fields, now = f'"child": "{verb}", "reason": "{reason}"', strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
        line = f'{{{fields}, "event": "{event}", "level": "warning", "timestamp": "{now}"}}'
        _write(line if self._form == "json" else f'warning: {event} child={verb} reason="{reason}"')

    def _turn(self, seconds: float) -> None:
        """Wait for a signal, or some ``seconds``, and take up whoever has ended: as pid 1 all are ours."""
        for each in self._kept:
            if each.verb in self._serves:
                each.keep(monotonic())
                seconds = min(seconds, COMPARE_S if each.pid else each.due - monotonic())
        came = signal.sigtimedwait(HANDLED, max(0.0, seconds))
        if came and came.si_signo in STOP:
            self._stop_at = self._stop_at or monotonic()
        self._asked |= bool(came and came.si_signo == signal.SIGHUP)
        with suppress(ChildProcessError):
            while any(ended := os.waitpid(-1, os.WNOHANG | os.WUNTRACED)):
                self._note(*ended)

    def _note(self, pid: int, status: int) -> None:
        """Take that a child has ended, or was stopped."""
        for each in (each for each in self._kept if each.pid == pid):
            each.note(status, monotonic())
            if os.WIFSIGNALED(status):
                self.log("child killed", each.verb, _describe_end(status))
            if each.verb == "nri" and not os.WIFSTOPPED(status):
                self._due = 0.0  # without it the node is not ready
        if pid == self._acting and not os.WIFSTOPPED(status):
            self._acting, self._status = 0, status


def _describe_end(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _write(line: str) -> None:
    with suppress(OSError):  # the log has no reader any more
        if select([], [2], [], 0.5)[1]:
            os.write(2, f"{line}\n".encode())


def _remove(*paths: str) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _waits(pid: int) -> str:
    """Return how often a process has gone to wait for something."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return file.read().partition("\nvoluntary_ctxt_switches:")[2].split()[0]
