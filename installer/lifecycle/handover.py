"""A unit of systemd on the host finishes an undo that has to wait longer than its process may.

Containers on our runtimes may run for hours, and a pod has seconds to end. CRI-O does not stop while it ends
our own container. A pod may see an engine's config read-only. ``lifecycle.successor`` is what the unit does.
"""

import time
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.engines import ENGINES
from installer.engines.config_files import explain_unwritable
from installer.engines.containers import find_own_pid
from installer.errors import InstallerError, PendingError, UndoIncompleteError
from installer.host import supervision, unit_jobs
from installer.host.events import log
from installer.host.files import Host
from installer.host.kernel import OWN, find_pid_beside_us, mount_namespace
from installer.host.systemd import read_unit, unit_runs
from installer.lifecycle.readiness import stamp
from installer.metrics import snapshot as metrics
from installer.model.facts import Record
from installer.model.files import PATH, ROOT, File, Kind, Meta, dumps, loads
from installer.model.options import InUse, Options, RestartMode, Wish

UNIT: Final = "toolkit-installer-undo.service"
MEMORY_BYTES: Final = 128 << 20  # as the pod's limit
LOADED_S: Final = 30.0  # for the unit to load all that it needs
AT_LEAST_S: Final = 5.0  # of that, also where a pod's grace runs out
ENDS_S: Final = 10.0  # for a unit of this name that is just ending
POLL_S: Final = 0.1
NO_RUN: Final = "0"  # the unit's process is no child of the run that ends
REMEDY: Final = "run uninstall on the node, or as a Job: everything is still installed"


def find_reason(host: Host, options: Options, record: Record) -> str:
    """Return why an undo by this process cannot even begin, "" where it can: CRI-O ends our container."""
    if options.restart_mode is RestartMode.NONE:
        return ""
    for row in record.engines:
        spec = ENGINES[row.name]
        if spec.finishes_calls and find_own_pid(host, row.state or spec.state.usual) is not None:
            return f"{row.name} restarts when this container has ended"
    return ""


def may_finish(host: Host, options: Options, record: Record, error: UndoIncompleteError) -> bool:
    """Tell whether the host can finish later, or where this process could not, what an undo has left."""
    if error.code == "in-use":
        return options.in_use is InUse.WAIT
    # The host itself sees its configs writable, unless they are read-only for everyone.
    return options.host_root != ROOT and bool(explain_unwritable(host, (row.path for row in record.configs)))


def hand_over(host: Host, options: Options, ledger: Ledger, reason: str, until_s: float) -> None:
    """Have the unit finish the undo; UndoIncompleteError: the unit does not start.

    Return once the unit has loaded all that it needs: then this process may end, and its image be removed.
    A unit that waits already goes on. ``until_s`` is when a pod's grace ends, on the clock that only goes on.
    """
    before = ledger.held
    try:
        waits = _await_settled(host)
        if not (waits and before.undo_pending):
            ledger.write(replace(before, undo_pending=stamp()))
        if not waits:
            _start(host, options, ledger, until_s)
    except InstallerError as error:
        if not isinstance(error, PendingError):  # else the unit may still come up, and then goes on
            ledger.write(replace(ledger.held, undo_pending=before.undo_pending))
        problem = f"hand over the undo ({error.problem})"
        raise UndoIncompleteError(problem, remedy=REMEDY, code="undo-not-handed-over") from error
    metrics.publish_pending(host, options, ledger)
    log.warning("undo handed over", unit=UNIT, reason=reason)


def _await_settled(host: Host) -> bool:
    """Tell whether the unit waits, or is starting; return False once a unit of this name has ended."""
    deadline = time.monotonic() + ENDS_S
    while (active := read_unit(host, UNIT).active) == "deactivating" and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return active in {"active", "activating"}


def _start(host: Host, options: Options, ledger: Ledger, until_s: float) -> None:
    """Start the unit with a copy of the options; neither a variable nor a word of them goes to systemd."""
    enter = _enter_words(host)
    copy = copy_of_options(options)
    ledger.make_directories(copy.parent)
    host.replace(copy, File(dumps(_wish(options)), Meta(0o600)))
    words = (*enter, *supervision.child_command(), "undo", str(host.local_path(copy)), "", "0", NO_RUN)
    timeout_s = min(LOADED_S, max(AT_LEAST_S, until_s - time.monotonic()))
    try:
        unit_jobs.start_transient(host, UNIT, words, memory_bytes=MEMORY_BYTES, timeout_s=timeout_s)
    except PendingError:
        raise
    except InstallerError:
        host.remove(copy)
        raise


def copy_of_options(options: Options) -> PurePosixPath:
    """Return where the options of the unit lie until it has read them."""
    return options.options_file.with_name(f"{options.options_file.name}.undo")


def _wish(options: Options) -> Wish:
    """Return the options with the way in which ``run``, where there is one, writes its events."""
    if not supervision.current_run().pid:
        return Wish(options, nvidia=False, log_format="json")
    wish = loads(supervision.current_run().options.read_bytes(), Wish)
    return Wish(options, nvidia=wish.nvidia, log_format=wish.log_format)


def _enter_words(host: Host) -> tuple[str, ...]:
    """Return the words before those of a program that is to see our files: of nsenter, none on the host."""
    proc = host.local_path(PurePosixPath("/proc"))
    own = mount_namespace(OWN)
    if own and mount_namespace(proc / "1") == own:
        return ()
    programs = [place / "nsenter" for place in PATH]
    nsenter = next((path for path in programs if host.kind(path) is Kind.FILE), None)
    if nsenter is None:
        remedy = "install util-linux on the node"
        raise InstallerError("leave this container (the node has no nsenter)", remedy=remedy)
    pid = find_pid_beside_us(proc)
    if pid is None:
        remedy = "mount the host's root, and name it with --host-root"
        raise InstallerError("leave this container (the host's /proc does not show it)", remedy=remedy)
    return (str(nsenter), "-t", str(pid), "-m", "--")


def is_waiting(host: Host) -> bool:
    """Tell whether the unit runs."""
    return unit_runs(host, UNIT)


def forget_failure(host: Host) -> None:
    """Have systemd list the unit no more among those that failed: another process has finished its undo."""
    with suppress(InstallerError):
        unit_jobs.reset_failed(host, UNIT)
