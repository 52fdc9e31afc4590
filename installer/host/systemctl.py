"""systemd by way of the host's own systemctl, where none of its sockets can be reached from here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from installer.decide.errors import InstallerError, PendingError
from installer.host.programs import ENVIRONMENT, LateError, Ran, run_in_time
from installer.host.systemd import NoBusError, UnitState
from installer.host.unit_start import MASKED, REFUSING, UnitStart

# Of systemctl 252 and 257: there is no systemd, or it cannot be reached either.
UNREACHABLE: Final = ("has not been booted", "connect to bus", "connect to system scope bus")
# Where it takes a root for a chroot it ignores "restart" and ends well.
REAL: Final = {"SYSTEMD_IGNORE_CHROOT": "1"}
NEEDED: Final = ("LoadState", "ActiveState", "SubState", "MainPID", "CanReload")
MORE: Final = ("Job", "InvocationID", "Result")  # not of every unit
LISTEN: Final = "Listen"  # of a socket, a line for each place: "/run/docker.sock (Stream)"


def restart(root: Path, unit: str, *, timeout_s: float) -> None:
    """Restart a unit, its count of recent starts forgotten before, and return when that is done.

    Raises:
        NoBusError: systemd cannot be reached this way either; nothing was done.
        PendingError: systemctl did not come back in time; what it was told to do goes on.
        InstallerError: it failed.
    """
    _systemctl(root, ["reset-failed", unit], timeout_s)
    _do(root, "restart", unit, timeout_s)


def reload(root: Path, unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config.

    Raises:
        InstallerError: as ``restart``.
    """
    _do(root, "reload", unit, timeout_s)


def start_transient(root: Path, unit: str, words: Sequence[str], *, timeout_s: float) -> None:
    """Have systemd run a command as a unit of its own, and do not wait for its end.

    Raises:
        InstallerError: as ``restart``.
    """
    asked = ["systemd-run", "--no-block", "--collect", "--quiet", f"--unit={unit}", "--", *words]
    done = _run(root, asked, timeout_s)
    if done.returncode:
        raise InstallerError(
            f"start {unit} ({done.last_line})",
            remedy="see systemctl --failed on the node",
            code="unit-failed",
        )


def state(root: Path, unit: str, *, timeout_s: float) -> UnitState:
    """Return the state of a unit.

    Raises:
        InstallerError: as ``restart``.
    """
    done = _systemctl(root, ["show", f"--property={','.join((*NEEDED, *MORE, LISTEN))}", unit], timeout_s)
    lines = [line.split("=", 1) for line in done.stdout.split("\n") if "=" in line]
    said, listens = dict(lines), tuple(words.rpartition(" (")[0] for name, words in lines if name == LISTEN)
    try:
        load, active, sub, main_pid, can_reload = (said[name] for name in NEEDED)
        job, invocation, result = (said.get(name, "") for name in MORE)
        running, reloads = int(main_pid), can_reload == "yes"
        return UnitState(load, active, sub, running, reloads, int(job or 0), invocation, result, listens)
    except (KeyError, ValueError) as error:
        raise InstallerError(
            f"look at {unit} ({done.last_line})", remedy="check the unit on the node", code="unit-failed"
        ) from error


def unit_start(root: Path, unit: str, *, timeout_s: float) -> UnitStart:
    """Return of how a unit starts its service what ``systemctl show`` tells as one word each.

    Raises:
        InstallerError: as ``restart``.
    """
    done = _systemctl(
        root, ["show", f"--property={','.join(('KillMode', 'LoadState', *REFUSING))}", unit], timeout_s
    )
    said = dict(line.split("=", 1) for line in done.stdout.split("\n") if "=" in line)
    return UnitStart(
        refuses=tuple(name for name in REFUSING if said.get(name) == "yes"),
        kill_mode=said.get("KillMode", ""),
        masked=said.get("LoadState") == MASKED,
    )


def _do(root: Path, verb: str, unit: str, timeout_s: float) -> None:
    done = _systemctl(root, [verb, unit], timeout_s)
    if done.returncode:
        raise InstallerError(
            f"{verb} {unit} ({done.last_line})",
            remedy=f"see journalctl -u {unit} on the node",
            code="unit-failed",
        )


def _systemctl(root: Path, words: list[str], timeout_s: float) -> Ran:
    return _run(root, ["systemctl", *words], timeout_s)


def _run(root: Path, words: list[str], timeout_s: float) -> Ran:
    try:
        done = run_in_time(root, words, timeout_s=timeout_s, environment=ENVIRONMENT | REAL)
    except LateError as error:
        raise PendingError(
            f"run {' '.join(words)} within {timeout_s:g} s (systemd still works on it, or hangs)",
            remedy="see systemctl list-jobs on the node, then run again",
        ) from error
    if done is None or (done.returncode and any(text in done.stderr for text in UNREACHABLE)):
        reason = done.last_line if done else "the host's systemctl cannot be run"
        raise NoBusError(
            f"reach systemd ({reason})",
            remedy="mount the node's /run/dbus into the container (the directory, not the socket)",
        )
    return done
