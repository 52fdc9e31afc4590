"""Why a unit did not start: what ended with a failure, and what this start logged, not one before it."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.errors import InstallerError
from installer.host import systemd, units
from installer.host.files import Host
from installer.host.programs import run_in
from installer.host.units import Unit

ASK_S: Final = 5.0
SYNC_S: Final = 1.0  # the engine is down meanwhile
LAST_LINES: Final = 50
ROOT: Final = PurePosixPath("/")
ITS_PROCESS: Final = "its process"
EXITED, KILLED, DUMPED = 1, 2, 3  # waitid(2): si_code
MAIN: Final = ("ExecMainStartTimestamp", "ExecMainCode", "ExecMainStatus")
SEVERITY_MARKERS: Final = ("level=fatal", "level=panic", "panic:", "level=error", "failed", "error")


def why_not_started(host: Host, unit: str, since_s: float, before: Unit | None = None) -> str:
    """Return how the start of a unit since ``since_s`` failed, and its gravest line; "" where nobody knows.

    ``before`` is the unit as it was: what its processes of that time say tells nothing of the start.
    """
    ended, words = _failed_command(host, unit, since_s), _last_words(host, unit, since_s, before)
    if words and ended.startswith(ITS_PROCESS):
        return words  # it has said by itself why
    return ": ".join(filter(None, (ended, words)))


def _failed_command(host: Host, unit: str, since_s: float) -> str:
    """Return which command of a service, started since then, has failed and how; "" for none."""
    try:
        said = systemd.ask(units.buses(host), lambda bus: bus.properties(unit), purpose="", timeout_s=ASK_S)
        # The program, its words, whether a failure is ignored, four moments in us, the pid, and how it ended.
        for program, _, ignored, began_us, _, _, _, _, code, status in said["ExecStartPre"]:
            if began_us >= since_s * 1e6 and not ignored and (how := _ended(code, status)):
                return f"its ExecStartPre {program} {how}"
        began_us, code, status = (said[name] for name in MAIN)
        how = _ended(code, status) if began_us >= since_s * 1e6 else ""
    except (InstallerError, LookupError, ValueError, TypeError):
        return ""
    return how and f"{ITS_PROCESS} {how}"


def _ended(code: int, status: int) -> str:
    """Return how a process failed, in words; "" for one that runs or ended well."""
    if code == EXITED:
        return f"exited with status {status}" if status else ""
    return f"was ended by signal {status}" if code in {KILLED, DUMPED} else ""


def _last_words(host: Host, unit: str, since_s: float, before: Unit | None) -> str:
    """Return the gravest of the last lines that a unit's processes logged, "" where there are none."""
    root = host.local_path(ROOT)
    run_in(root, ["journalctl", "--sync"], timeout_s=SYNC_S)  # what a process said just before its end
    words = ["journalctl", f"_SYSTEMD_UNIT={unit}", f"--since=@{since_s:.6f}", "--output=json", "--no-pager"]
    # With --since and without --reverse, --lines are the first ones (systemd 252).
    ran = run_in(root, [*words, "--quiet", "--reverse", f"--lines={LAST_LINES}"], timeout_s=SYNC_S)
    lines = list(_messages(ran.stdout if ran else "", before))
    for mark in SEVERITY_MARKERS:
        for line in lines:
            if mark in line.lower():
                return line[:300]
    return lines[0][:300] if lines else ""


def _messages(journal: str, before: Unit | None) -> Iterator[str]:
    """Yield the texts of journal entries, in their order, less those of the invocation ``before``."""
    stale = {(name, value) for name, value in _marks(before) if value not in {"", "0"}}
    for entry in journal.splitlines():
        with suppress(ValueError, TypeError, AttributeError):
            told = json.loads(entry)
            said = told.get("MESSAGE")
            # What is no UTF-8 comes as an array of its bytes.
            text = bytes(said).decode(errors="replace") if isinstance(said, list) else str(said or "")
            # Remarks of systemd's own, as of an optional program that is missing, name a place in its code.
            remark = "CODE_FILE" in told and not any(mark in text.lower() for mark in SEVERITY_MARKERS)
            if text.strip() and not remark and not any(told.get(name) == value for name, value in stale):
                yield text.strip()


def _marks(before: Unit | None) -> Iterator[tuple[str, str]]:
    """Yield the fields of a journal entry by which one of an earlier start is known.

    journald may take in a last line of the process before when the next invocation has begun: then the
    process alone tells.
    """
    if before is not None:
        yield "_SYSTEMD_INVOCATION_ID", before.invocation
        yield "_PID", str(before.main_pid)
