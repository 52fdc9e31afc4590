"""The NRI plugin from outside: started, shown by ``status``, which asks neither it nor an engine, removed."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.errors import Exit, InstallerError
from installer.host import locks, supervision
from installer.host.events import log
from installer.host.files import Host, read_json_of_root
from installer.model.facts import Record
from installer.model.files import Kind
from installer.model.nri import UNSEEN, Nri, PluginState, name_missed
from installer.model.options import Options

WHAT: Final = "NRI plugin"
WITHOUT: Final = "containers that ask for devices by annotation start without them"
NAMED: Final = 5


def read_state(host: Host, path: PurePosixPath) -> PluginState | None:
    """Return the state that the plugin has written; None where there is none of root's."""
    return read_json_of_root(host, path, PluginState)


def at_ledger_socket(nri: Nri, record: Record | None) -> Nri:
    """Return the plugin with the socket that ``run`` has written down, where it has."""
    return nri.at(record.nri) if record and record.nri else nri


def describe_plugin(host: Host, nri: Nri, record: Record | None) -> Iterator[tuple[str, str, bool, bool]]:
    """Yield what there is to tell of the plugin: about what, how it was, and whether that is good.

    The last tells of what is not good whether the node is ready so: what was missed stays missed, and a
    plugin that no ``run`` has beside itself is nothing that this installation promises.
    """
    beside_run = record is not None and record.nri is not None
    nri = at_ledger_socket(nri, record)
    state = read_state(host, nri.state)
    if state is None and not beside_run:
        return
    state = state or UNSEEN
    why = f" ({state['problem']})" if state["problem"] else ""
    remedy = "start run again, or uninstall" if beside_run else "start it again"
    lock = host.local_path(nri.lock)
    if not locks.is_held_pidfile(lock):
        last = f"has ended{why}, last seen at {state['since']}" if state["since"] else "does not run"
        yield WHAT, f"{last}: {WITHOUT}; {remedy}", False, not beside_run
    elif not state["registered"]:
        since = f" since {state['since']}" if state["since"] else ""
        yield WHAT, f"not registered{since}{why}: {WITHOUT}", False, not beside_run
    else:
        yield WHAT, f"registered with {state['engine']}, since {state['since']}", True, True
    if missed := state["missed"][:NAMED]:
        in_all, names = state["missed_in_all"], ", ".join(map(name_missed, missed))
        more = ", ..." if in_all != len(missed) else ""
        sentence = f"{in_all} containers run without the devices that their pods ask for"
        yield WHAT, f"{sentence} ({names}{more}): delete these pods", False, True


def is_registered(host: Host, nri: Nri) -> bool:
    """Tell whether an engine has configured the plugin and asks it."""
    state, lock = read_state(host, nri.state) or UNSEEN, host.local_path(nri.lock)
    return state["registered"] and locks.is_held_pidfile(lock)


def remove_plugin(host: Host, nri: Nri) -> None:
    """Remove what a ``run`` that was killed has left; a plugin that runs does so itself."""
    if locks.is_held_pidfile(host.local_path(nri.lock)):
        return
    with suppress(InstallerError):
        if read_state(host, nri.state) is not None:
            host.remove(nri.state)
        locks.remove_pidfile(host, nri.lock)


def serve(options: Options, log_format: str) -> Exit:
    """Become the plugin, or raise: another instance serves this engine, or NRI is not there."""
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
    """Become the plugin beside ``run``, which ends with that; ``ended`` is how the one before it has."""
    if not supervision.end_with_run():
        return Exit.OK  # the ``run`` that it served has ended
    if ended != "-":
        log.warning("NRI plugin started again", ended=ended)
    return serve(options, log_format)


def refuse_absent(host: Host, nri: Nri) -> None:
    """Raise where no engine can listen for plugins: the directory of its socket is not there."""
    directory = nri.socket.parent
    if host.kind(directory) is not Kind.DIRECTORY:
        problem = f"reach NRI at {nri.socket} (there is no directory {directory})"
        remedy = "switch NRI on in the engine, and mount that directory, not the socket, where this runs"
        raise InstallerError(problem, remedy=remedy, code="nri-unusable")
