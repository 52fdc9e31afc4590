"""Finish an undo as a unit of systemd: wait for containers, then undo the rest.

The unit begins in the mount namespace of a pod that ends, and the pod's image may be removed at any moment
after its end. So the unit loads all modules and plans the undo once before it reports that it is ready. From
then on it sees the host's own files, executes the host's own programs and needs no file of the image.
"""

import sys
import time
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from importlib.machinery import BuiltinImporter, FrozenImporter
from pathlib import PurePosixPath
from pkgutil import walk_packages
from typing import Final

from msgspec.structs import replace

from installer.change.ledger import read_record
from installer.change.observe import observe_undo
from installer.change.plan import plan_undo
from installer.engines.containers import find_in_use, find_running_containers
from installer.engines.dry_run import DryRuns
from installer.errors import Exit, InstallerError, LockedError, UndoIncompleteError
from installer.host import supervision, systemd
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.host.kernel import enter_mount_namespace
from installer.host.own_version import describe_version
from installer.lifecycle.ledger_access import as_incomplete_undo, open_ledger
from installer.lifecycle.uninstall import undo
from installer.metrics import snapshot as metrics
from installer.model.engine import EngineState
from installer.model.facts import PendingUndo, Record
from installer.model.files import ROOT
from installer.model.options import InUse, Options, RestartMode

LOOK_S: Final = 10.0
AGAIN_S: Final = 60.0  # from one try to the next
LONGEST_S: Final = 24 * 3600.0
ROOMS: Final = (
    "config_text",
    "model",
    "host",
    "engines",
    "payload",
    "cdi",
    "nri",
    "fleet",
    "change",
    "metrics",
    "lifecycle",
)
# Modules that these rooms and the libraries import only when they use them.
USED_LATER: Final = (
    "ctypes",
    "email.parser",
    "encodings.ascii",
    "encodings.idna",
    "encodings.latin_1",
    "encodings.utf_8_sig",
    "http.client",
    "queue",
    "random",
    "shutil",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "traceback",
    "unicodedata",
    "docker.errors",
    "docker.types",
    "h2.config",
    "h2.connection",
    "h2.events",
    "h2.exceptions",
    "jeepney.auth",
    "jeepney.bus_messages",
    "jeepney.io.blocking",
    "prometheus_client.core",
    "prometheus_client.openmetrics.exposition",
    "psutil",
    "structlog.dev",
    "tomlkit",
    "yaml",
    "yaml.events",
)


def finish(options: Options) -> Exit:
    """Finish the undo that another process has handed over.

    Raises:
        UndoIncompleteError: the undo cannot be finished.
    """
    with as_incomplete_undo():
        proc = Host.under(options.host_root, options.mounts).local_path(PurePosixPath("/proc"))
        load()
        enter_mount_namespace(proc / "1/ns/mnt")
        options = replace(options, host_root=ROOT, mounts=(), in_use=InUse.KEEP)
        host = Host.under(ROOT)
        engines = rehearse(host, options)
        forbid_imports()
        systemd.notify_ready()
        return await_end(host, options, engines)


def load() -> None:
    """Load every module that an undo may need."""
    for room in ROOMS:
        package = import_module(f"installer.{room}")
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(found.name)
    for name in USED_LATER:
        import_module(name)


def forbid_imports() -> None:
    """Forbid to load modules from files from now on: the host has other files under the same paths."""
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]


def rehearse(host: Host, options: Options) -> tuple[EngineState, ...]:
    """Observe the node and plan the undo without any change; return the engines of the ledger.

    The rehearsal loads everything that libraries load at their first use.
    """
    describe_version()
    with suppress(InstallerError), internal_errors():
        record = read_record(host, options.layout) or Record()
        facts = observe_undo(host, options, record, awaits_s=0.0)
        plan_undo(facts, options, DryRuns(host, facts.contents))
        return facts.engines
    return ()


def await_end(host: Host, options: Options, engines: Collection[EngineState]) -> Exit:
    """Wait, without any lock, until no container uses our runtimes, then undo."""
    began_s = time.monotonic()
    handed_over: PendingUndo | None = None
    tried = False
    earliest_s = began_s
    while True:
        record = read_record(host, options.layout)
        if record is None or not record.undo_pending:
            log.info("undo left to another", reason="run, install or uninstall has taken it over")
            return Exit.OK
        if record.undo_pending != handed_over:
            handed_over = record.undo_pending
            earliest_s = time.monotonic() + handed_over.waits_s
            tried = False
        # The first try, while containers still use our runtimes, removes at least our default runtime.
        if time.monotonic() >= earliest_s and not (tried and _is_used(host, options, record, engines)):
            if _undo_now(host, options):
                return Exit.OK
            tried = True
            earliest_s = time.monotonic() + AGAIN_S
        if time.monotonic() - began_s > LONGEST_S:
            problem = record.undo_problem or "undo everything"
            remedy = "stop these containers, then run uninstall, or uninstall --in-use=force"
            raise UndoIncompleteError(f"{problem} within a day", remedy=remedy, code="in-use")
        if supervision.await_stop(LOOK_S):
            log.info(
                "undo left to another", reason="this unit was stopped; the next run or uninstall goes on"
            )
            return Exit.OK


def _is_used(host: Host, options: Options, record: Record, engines: Collection[EngineState]) -> bool:
    """Tell whether containers still use our runtimes; ask Docker only if the shims do not tell enough."""
    restarts = options.restart_mode is not RestartMode.NONE
    where = (host, options.layout, record, engines)
    if find_running_containers(*where, restarts=restarts):
        return True
    return bool(find_in_use(*where, restarts=restarts)[0])


def _undo_now(host: Host, options: Options) -> bool:
    """Undo as much as possible now; tell whether the undo is complete, or another process's."""
    try:
        with open_ledger(host, options) as ledger:
            if not ledger.record.undo_pending:
                return True
            try:
                undo(host, options, ledger)
            except UndoIncompleteError as error:
                if error.code != "in-use":
                    raise
                metrics.publish_pending(host, options, ledger)
                log.info("undo postponed", reason=error.problem)
                return False
    except LockedError:  # another command is at work; the next look reads the ledger that it leaves
        return False
    return True
