"""The files that ``run`` publishes beside its pidfile: claimed before its install, removed with its undo."""

from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.host import locks
from installer.host.files import Host
from installer.lifecycle import handover, readiness
from installer.metrics import snapshot as metrics
from installer.model.options import Options


def claim_run_files(host: Host, options: Options, ledger: Ledger) -> None:
    """Record the files to publish, and refuse another program's file at the path of such a file."""
    metrics.claim(host, options, ledger)
    ledger.make_directories(options.pid_file.parent)
    for path in (options.ready_file, options.state_file):
        readiness.refuse_foreign(host, path)


def remove_run_files(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove the pidfile and the published files, also those of a killed ``run``.

    No other process writes them at the same time, because this process has the ledger's lock.
    """
    pid_files = {options.pid_file, ledger.record.pid_file or options.pid_file}
    for pid_file in pid_files:
        run_options = replace(options, pid_file=pid_file)
        readiness.remove(host, run_options.ready_file)
        locks.remove_pidfile(host, run_options.pid_file)
        readiness.remove(host, run_options.state_file)
        host.remove(run_options.options_file)
        host.remove(handover.copy_of_options(run_options))
        for published in (run_options.ready_file, run_options.state_file, run_options.options_file):
            host.sweep(published)
