"""What the NRI plugin of this node has left for ``status``: it asks neither the plugin nor an engine."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import replace
from installer.decide.errors import InstallerError
from installer.decide.metrics import PluginFigures
from installer.decide.nri.wishes import Missed, Nri
from installer.decide.rows import Record
from installer.host.files import Host
from installer.host.glance import halted, is_held_pidfile
from installer.host.holder import holder_of
from installer.host.locks import remove_pidfile
from installer.host.nri_state import VERSION, State
from installer.host.supervision import run
from installer.record.texts import told_by_root

WHAT: Final = "NRI plugin"
WITHOUT: Final = "containers that ask for devices by annotation start without them"
BESIDE_RUN: Final = "start run again, or uninstall"
NAMED: Final = 5


def read(host: Host, path: PurePosixPath) -> State | None:
    """Return what the plugin has told; None where that is nothing, cannot be read, or is not root's."""
    try:
        said = told_by_root(host, path)
        if said.pop("version") != VERSION:
            return None
        missed = tuple(Missed(**each) for each in said.pop("missed"))
        return State(missed=missed, **said)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def of_ledger(nri: Nri, held: Record | None) -> Nri:
    """Return the plugin with the socket that ``run`` has written down, where it has."""
    return replace(nri, socket=held.nri) if held and held.nri else nri


def lines(host: Host, nri: Nri, held: Record | None) -> Iterator[tuple[str, str, bool, bool]]:
    """Yield what there is to tell of the plugin: about what, how it was, and whether that is good.

    The last tells of what is not good whether the node is ready so: what was missed stays missed, and a
    plugin that no ``run`` has beside itself is nothing that this installation promises.
    """
    beside_run = held is not None and held.nri is not None
    nri = of_ledger(nri, held)
    state = read(host, nri.state)
    if state is None and not beside_run:
        return
    state = state or State()
    why = f" ({state.problem})" if state.problem else ""
    remedy = BESIDE_RUN if beside_run else "start it again"
    lock = host.local_path(nri.lock)
    if not is_held_pidfile(str(lock)):
        last = f"has ended{why}, last seen at {state.since}" if state.since else "does not run"
        yield WHAT, f"{last}: {WITHOUT}; {remedy}", False, not beside_run
    elif halt := halted(str(lock)):
        pid = holder_of(lock)
        remedy = (
            "run starts another within two minutes" if beside_run else f"kill -9 {pid}, and start it again"
        )
        yield WHAT, f"hangs (pid {pid}, {halt}): {WITHOUT}; {remedy}", False, not beside_run
    elif not state.registered:
        since = f" since {state.since}" if state.since else ""
        yield WHAT, f"not registered{since}{why}: {WITHOUT}", False, not beside_run
    else:
        yield WHAT, f"registered with {state.engine}, since {state.since}", True, True
    if state.missed:
        names = [f"{each.namespace}/{each.pod}/{each.container}" for each in state.missed[:NAMED]]
        more = ", ..." if state.missed_in_all != len(names) else ""
        told = f"{state.missed_in_all} containers run without the devices that their pods ask for"
        yield WHAT, f"{told} ({', '.join(names)}{more}): delete these pods", False, True


def figures(host: Host, nri: Nri, held: Record) -> PluginFigures | None:
    """Return what monitoring is told of the plugin beside ``run``; None where there is to be none."""
    if held.nri is None:
        return None
    nri = of_ledger(nri, held)
    state = read(host, nri.state) or State()
    return PluginFigures(is_registered(host, nri), state.missed_in_all, run().plugin_ends)


def is_registered(host: Host, nri: Nri) -> bool:
    """Tell whether an engine has configured the plugin and asks it by now."""
    state, lock = read(host, nri.state) or State(), str(host.local_path(nri.lock))
    return state.registered and is_held_pidfile(lock) and not halted(lock)


def remove(host: Host, nri: Nri) -> None:
    """Remove what a ``run`` that was killed has left; a plugin that runs does so itself."""
    if is_held_pidfile(str(host.local_path(nri.lock))):
        return
    with suppress(InstallerError):
        if read(host, nri.state) is not None:
            host.remove(nri.state)
        remove_pidfile(host, nri.lock)
