"""What the NRI plugin of this node has left for ``status``: it asks neither the plugin nor an engine."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.nri.wishes import Missed, Nri
from installer.host.files import Host
from installer.host.glance import is_held_pidfile
from installer.host.nri_state import VERSION, State
from installer.record.texts import told_by_root

WHAT: Final = "NRI plugin"
WITHOUT: Final = "containers that ask for devices by annotation start without them"
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


def lines(host: Host, nri: Nri) -> Iterator[tuple[str, str, bool]]:
    """Yield what there is to tell of the plugin: about what, how it was, and whether that is good."""
    state = read(host, nri.state)
    if state is None:
        return
    why = f" ({state.problem})" if state.problem else ""
    if not is_held_pidfile(str(host.local_path(nri.lock))):
        yield (
            WHAT,
            f"has ended{why}, last seen at {state.since}: {WITHOUT}; start it again",
            False,
        )
    elif not state.registered:
        yield WHAT, f"not registered since {state.since}{why}: {WITHOUT}", False
    else:
        yield WHAT, f"registered with {state.engine}, since {state.since}", True
    if state.missed:
        names = [f"{each.namespace}/{each.pod}/{each.container}" for each in state.missed[:NAMED]]
        more = ", ..." if state.missed_in_all != len(names) else ""
        told = f"{state.missed_in_all} containers run without the devices that their pods ask for"
        yield WHAT, f"{told} ({', '.join(names)}{more}): delete these pods", False
