"""Hand an undo over to a unit of systemd on the host, if this process cannot wait long enough to finish it.

Containers on our runtimes may run for hours, and a pod has seconds to end. CRI-O does not stop while it ends
our own container. A pod may see an engine's config read-only. The unit executes ``lifecycle.successor``.
"""

import time
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.engines import ENGINES
from installer.engines.config_files import explain_unwritable, find_attribute
from installer.engines.container_records import find_own_pid
from installer.errors import InstallerError, PendingError, UndoIncompleteError
from installer.host import supervision, unit_jobs
from installer.host.events import log
from installer.host.files import Host
from installer.host.kernel import OWN, find_pid_beside_us, mount_namespace
from installer.host.systemd import read_unit, unit_runs
from installer.metrics import snapshot as metrics
from installer.model.facts import PendingUndo, Record
from installer.model.files import PATH, ROOT, File, Kind, Meta, dumps, loads
from installer.model.options import InUse, Options, RestartMode, RunRequest

UNIT: Final = "toolkit-installer-undo.service"
MEMORY_BYTES: Final = 128 << 20  # as the pod's limit
LOADED_S: Final = 30.0  # for the unit to load all its modules
AT_LEAST_S: Final = 5.0  # of LOADED_S, also if a pod's grace runs out
ENDS_S: Final = 10.0  # for an earlier unit of this name to end
POLL_S: Final = 0.1
NO_RUN: Final = "0"  # the unit's process is no child of the run that ends
REMEDY: Final = "run uninstall on the node, or as a Job: status shows what is still installed"


def find_reason(host: Host, options: Options, record: Record) -> str:
    """Return why an undo by this process cannot even begin, else "".

    An undo with a restart of CRI-O cannot begin while CRI-O ends our own container.
    """
    if options.restart_mode is RestartMode.NONE:
        return ""
    for row in record.engines:
        kind = ENGINES[row.name]
        if kind.finishes_calls and find_own_pid(host, row.state or kind.state.usual) is not None:
            return f"{row.name} restarts when this container has ended"
    return ""


def may_finish(host: Host, options: Options, record: Record, error: UndoIncompleteError) -> bool:
    """Tell whether the host can finish an undo that this process cannot finish now."""
    if error.code == "in-use":
        return options.in_use is InUse.WAIT
    paths = [row.path for row in record.configs]
    if any(find_attribute(host, host.resolve(path)) is not None for path in paths):
        return False
    # The host itself can write its configs, unless their file system is read-only on the host, too.
    return options.host_root != ROOT and bool(explain_unwritable(host, paths))


def hand_over(host: Host, options: Options, ledger: Ledger, pending: PendingUndo, until_s: float) -> None:
    """Have the unit finish the undo.

    Return once the unit has loaded all modules: then this process may end, and the image be removed. A
    waiting unit goes on.

    Args:
        host: the host.
        options: the options of the undo.
        ledger: the open ledger.
        pending: since when, why and how long the undo waits.
        until_s: when a pod's grace ends, by ``time.monotonic``.

    Raises:
        UndoIncompleteError: the unit does not start.
    """
    before = ledger.record
    try:
        waits = _await_settled(host)
        if not (waits and _waits_as_long(before, pending)):
            ledger.write(replace(before, undo_pending=pending))
        if not waits:
            _start(host, options, ledger, until_s)
    except InstallerError as error:
        if not isinstance(error, PendingError):  # after a PendingError the unit may still start, and goes on
            ledger.write(replace(ledger.record, undo_pending=before.undo_pending))
        problem = f"hand over the undo ({error.problem})"
        raise UndoIncompleteError(problem, remedy=REMEDY, code="undo-not-handed-over") from error
    metrics.publish_pending(host, options, ledger)
    log.warning("undo handed over", unit=UNIT, reason=pending.reason, waits_s=round(pending.waits_s))


def _waits_as_long(record: Record, pending: PendingUndo) -> bool:
    """Tell whether the ledger already has an undo that waits no longer than the new one."""
    return record.undo_pending is not None and record.undo_pending.waits_s <= pending.waits_s


def _await_settled(host: Host) -> bool:
    """Tell whether the unit waits or is starting; wait first for the end of an earlier unit of this name."""
    deadline = time.monotonic() + ENDS_S
    active = read_unit(host, UNIT).active
    while active == "deactivating" and time.monotonic() < deadline:
        time.sleep(POLL_S)
        active = read_unit(host, UNIT).active
    return active in {"active", "activating"}


def _start(host: Host, options: Options, ledger: Ledger, until_s: float) -> None:
    """Start the unit with a copy of the options in a file; systemd gets only the path."""
    enter = _enter_words(host)
    copy = copy_of_options(options)
    ledger.make_directories(copy.parent)
    host.replace(copy, File(dumps(_run_request(options)), Meta(0o600)))
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
    """Return the path of the unit's options; the unit reads the file at the start."""
    return options.options_file.with_name(f"{options.options_file.name}.undo")


def _run_request(options: Options) -> RunRequest:
    """Return the options with the log format of ``run``; without a ``run``, in JSON."""
    if not supervision.is_child():
        return RunRequest(options, nvidia=False, log_format="json")
    request = loads(supervision.current_run().options.read_bytes(), RunRequest)
    return RunRequest(options, nvidia=request.nvidia, log_format=request.log_format)


def _enter_words(host: Host) -> tuple[str, ...]:
    """Return the nsenter command in front of a program that needs our files; on the host an empty tuple."""
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
    """Reset the failed state of the unit in systemd: another process has finished the undo."""
    with suppress(InstallerError):
        unit_jobs.reset_failed(host, UNIT)
