"""Start the NRI plugin, show its state in ``status`` from its files alone, and remove its files."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from installer.errors import Exit, InstallerError
from installer.host import locks, supervision
from installer.host.events import log
from installer.host.files import Host, read_json_of_root
from installer.model.facts import Record
from installer.model.files import Kind
from installer.model.nri import UNSEEN, Nri, PluginState, name_missed
from installer.model.options import Options

SUBJECT: Final = "NRI plugin"
WITHOUT: Final = "containers that ask for devices by annotation start without them"
NAMED: Final = 5


class PluginFinding(NamedTuple):
    """A finding about the plugin, for a line of ``status``.

    A finding that is not good may leave the node ready: missed containers stay missed until their pods are
    deleted, and this installation promises nothing about a plugin started by no ``run``.
    """

    subject: str
    state: str
    good: bool
    leaves_ready: bool


def read_state(host: Host, path: PurePosixPath) -> PluginState | None:
    """Read the state written by the plugin; None without a state file of root."""
    return read_json_of_root(host, path, PluginState)


def at_ledger_socket(nri: Nri, record: Record | None) -> Nri:
    """Return the options with the socket in the ledger of ``run``, if the ledger has a socket."""
    if record and record.nri:
        return nri.at(record.nri)
    return nri


def describe_plugin(host: Host, nri: Nri, record: Record | None) -> Iterator[PluginFinding]:
    """Yield the findings about the plugin."""
    beside_run = record is not None and record.nri is not None
    nri = at_ledger_socket(nri, record)
    state = read_state(host, nri.state)
    if state is None and not beside_run:
        return
    state = state or UNSEEN
    since = ""
    if state["since"]:
        since = f" since {state['since']}"
    reason = ""
    if state["problem"]:
        reason = f" ({state['problem']})"

    lock = host.local_path(nri.lock)
    if not locks.is_pidfile_locked(lock):
        last = "does not run"
        if state["since"]:
            last = f"has ended{reason}, last seen at {state['since']}"
        remedy = "start it again"
        if beside_run:
            remedy = "start run again, or uninstall"
        sentence = f"{last}: {WITHOUT}; {remedy}"
        yield PluginFinding(SUBJECT, sentence, good=False, leaves_ready=not beside_run)
    elif not state["registered"]:
        sentence = f"not registered{since}{reason}: {WITHOUT}"
        yield PluginFinding(SUBJECT, sentence, good=False, leaves_ready=not beside_run)
    else:
        sentence = f"registered with {state['engine']}, since {state['since']}"
        yield PluginFinding(SUBJECT, sentence, good=True, leaves_ready=True)

    missed = state["missed"][:NAMED]
    if missed:
        total = state["missed_in_all"]
        names = ", ".join(map(name_missed, missed))
        if total != len(missed):
            names += ", ..."
        sentence = f"{total} containers run without the devices that their pods ask for"
        sentence += f" ({names}): delete these pods"
        yield PluginFinding(SUBJECT, sentence, good=False, leaves_ready=True)


def is_registered(host: Host, nri: Nri) -> bool:
    """Tell whether an engine has registered the plugin, and the plugin runs."""
    state = read_state(host, nri.state) or UNSEEN
    lock = host.local_path(nri.lock)
    return state["registered"] and locks.is_pidfile_locked(lock)


def remove_plugin(host: Host, nri: Nri) -> None:
    """Remove the files of a killed plugin; a running plugin removes the files itself."""
    if locks.is_pidfile_locked(host.local_path(nri.lock)):
        return
    with suppress(InstallerError):
        if read_state(host, nri.state) is not None:
            host.remove(nri.state)
        host.remove(nri.staged_state)
        locks.remove_pidfile(host, nri.lock)


def serve(options: Options, log_format: str) -> Exit:
    """Become the plugin.

    Raises:
        InstallerError: another instance serves this engine, or NRI is missing.
    """
    nri = options.nri
    nri.refuse_idle()
    host = Host.under(options.host_root, options.mounts)
    refuse_absent(host, nri)
    lock = locks.lock_pidfile(host, nri.lock)
    locks.write_pid(lock, nri.lock)
    places = [str(host.local_path(path)) for path in (nri.socket, nri.state, nri.lock)]
    words = [str(lock.fd), log_format, *nri.identity, *map(str, nri.allowed)]
    supervision.become_plugin(lock.fd, [*places, *words])


def serve_beside(options: Options, ended: str, log_format: str) -> Exit:
    """Become the plugin beside ``run``; the plugin ends with ``run``.

    Args:
        options: the options of ``run``.
        ended: the end of the previous plugin, "-" for none.
        log_format: the format of the log.
    """
    if not supervision.end_with_run():
        return Exit.OK  # ``run`` has ended already
    if ended != "-":
        log.warning("NRI plugin started again", ended=ended)
    return serve(options, log_format)


def refuse_absent(host: Host, nri: Nri) -> None:
    """Refuse a node without NRI: the directory of the engine's socket is missing.

    Raises:
        InstallerError: the directory is missing.
    """
    directory = nri.socket.parent
    if host.kind(directory) is not Kind.DIRECTORY:
        problem = f"reach NRI at {nri.socket} (there is no directory {directory})"
        remedy = "switch NRI on in the engine, and mount that directory, not the socket, where this runs"
        raise InstallerError(problem, remedy=remedy, code="nri-unusable")
