"""The driver's device nodes: made where they are absent and asked for, and removed if they are ours."""

from typing import Final

from installer.decide.facts import Facts
from installer.decide.options import Options
from installer.decide.part import Part
from installer.decide.rows import Record
from installer.decide.steps import MakeDeviceNodes, RemoveDeviceNodes

ID: Final = "device-nodes"


def install(facts: Facts, options: Options) -> Part:
    """Return how the control device nodes that are absent are made."""
    wanted, absent = options.cdi, facts.absent_nodes
    if wanted is None or not absent:
        return Part(ID, rows=Record(nodes=facts.held_nodes))
    return Part(
        ID,
        (MakeDeviceNodes(absent, wanted, options.toolkit_source),),
        ("they are not there, and the CDI specification is to name them",),
        Record(nodes=(*facts.held_nodes, *absent)),
    )


def undo(facts: Facts, *, stays: bool) -> Part:
    """Return how the nodes that we had made go, unless something of ours ``stays``.

    Those that the specification of an installer names which has taken the place of ours stay: no container
    could start with it.
    """
    nodes = facts.held.nodes
    named = {path for paths in facts.handed.values() for path in paths} if facts.toolkit.theirs else set()
    going = tuple(node for node in nodes if str(node.path) not in named)
    if stays or not going:
        return Part(ID, rows=Record(nodes=nodes))
    return Part(ID, (RemoveDeviceNodes(going),), ("we had made them",), Record(nodes=nodes))
