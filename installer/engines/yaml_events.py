"""The events of a YAML text, at a cost of its length: libyaml takes the square of the levels."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from yaml.events import Event

MOST_CHARACTERS: Final = 1 << 20  # usual settings have some lines
MOST_LEVELS: Final = 32


def list_events(text: str) -> Iterator[tuple[int, "Event"]]:
    """Yield the level and the event of each part of a text; end at more than ``MOST_LEVELS``.

    Raises:
        yaml.YAMLError: the text is no YAML.
    """
    import yaml  # few nodes have such a file
    from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent

    anchors = set[str]()
    level = 0
    for event in yaml.parse(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
        if isinstance(event, CollectionEndEvent):
            level -= 1
        if isinstance(event, AliasEvent):
            if event.anchor not in anchors:
                raise yaml.YAMLError(f"undefined alias {event.anchor}")
        elif isinstance(event, NodeEvent) and event.anchor:
            anchors.add(event.anchor)
        yield level, event
        if isinstance(event, CollectionStartEvent):
            level += 1
            if level > MOST_LEVELS:
                return
