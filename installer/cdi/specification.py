"""CDI specifications: ours, with the host's paths and the lowest version, and what engines read in any other.

An engine reads a specification whole, or nothing of it, as the library that engines share does
(tags.cncf.io/container-device-interface): with one wrong device, one unknown key or a text that breaks off,
none of its devices is there.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import PurePosixPath
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, convert, defstruct

from installer.errors import InstallerError
from installer.model.nri import DEVICE

if TYPE_CHECKING:
    from yaml.events import Event

Version: TypeAlias = tuple[int, ...]
Moves: TypeAlias = Sequence[tuple[PurePosixPath, PurePosixPath]]
GROUPS: Final = "additionalGids"
RDT: Final = "intelRdt"
ALL_GPUS: Final = "all"  # a device of each that nvidia-ctk generates
# Since which version of the format an edit may have these (CDI specification, "Released versions").
EDITS: Final[Mapping[str, Version]] = {
    "env": (0, 3, 0),
    "deviceNodes": (0, 3, 0),
    "mounts": (0, 3, 0),
    "hooks": (0, 3, 0),
    RDT: (0, 7, 0),
    GROUPS: (0, 7, 0),
}
LOWEST: Final = (0, 3, 0)
HOST_PATHS: Final = (0, 5, 0)  # of a device node, and a device whose name begins with a digit
MOUNT_TYPES: Final = (0, 4, 0)
ANNOTATIONS: Final = (0, 6, 0)  # and a dot in the class
# What reading raises where the text is of another shape.
MISTAKEN: Final = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


def specification(text: str, kind: str, moves: Moves, highest: Version | None = None) -> str:
    """Return what nvidia-ctk says, as JSON, with the host's paths in the place of this process's.

    ``moves`` pairs a root as this process finds it with the host's. ``highest`` is the version up to which
    every engine reads, None for any: groups of devices, which need a later one, are left out below that.
    InstallerError where it is no specification of this kind, an empty one, or of too late a version.
    """
    try:
        document = json.loads(text)
        _refuse_empty(document, kind)
        for edits in _edits(document):
            _map_paths(edits, sorted(moves, key=lambda pair: -len(pair[0].parts)))
            if highest is not None and highest < EDITS[GROUPS]:
                edits.pop(GROUPS, None)
        lowest = lowest_version(document)
    except MISTAKEN as error:
        remedy = "choose a release of the toolkit from 1.12 on"
        raise _unusable("it is no specification in JSON", remedy) from error
    if lowest is not None and highest is not None and lowest > highest:
        read, needed = (".".join(map(str, each)) for each in (highest, lowest))
        raise _unusable(
            f"it is of version {needed}, and an engine here reads up to {read}", "upgrade that engine"
        )
    if lowest is not None:
        document["cdiVersion"] = ".".join(map(str, lowest))
    return json.dumps(document, indent=1) + "\n"


def device_names(text: str) -> frozenset[str]:
    """Return the names of the devices of a specification of ours; none of another text."""
    with suppress(*MISTAKEN):
        return frozenset(str(device["name"]) for device in json.loads(text)["devices"])
    return frozenset()


def named_paths(text: str) -> tuple[str, ...]:
    """Return the files and device nodes of the host that a specification names; none of another text."""
    with suppress(*MISTAKEN):
        edits = list(_edits(json.loads(text)))
        paths = [node.get("hostPath") or node.get("path") for node in _all(edits, "deviceNodes")]
        paths += [mount.get("hostPath") for mount in _all(edits, "mounts")]
        return tuple(dict.fromkeys(path for path in paths if isinstance(path, str) and path.startswith("/")))
    return ()


def _refuse_empty(document: Mapping[str, Any], kind: str) -> None:
    if document["kind"] != kind or not [device["name"] for device in document["devices"]]:
        raise _unusable(f"it has no devices of {kind}", "check the driver with nvidia-smi")
    if not any(edits.get("deviceNodes") for edits in _edits(document)):
        raise _unusable("it names no device", "load the driver's modules")
    if not any(edits.get("mounts") for edits in _edits(document)):
        # So it is where the driver's root is a link: it ends well (engine-facts.md#gpu-specification).
        raise _unusable("it names no file of the driver", "give the real directory of the driver's root")


def _edits(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is done to a container for each device, and for all."""
    yield from (device["containerEdits"] for device in document["devices"])
    if document.get("containerEdits"):
        yield document["containerEdits"]


def _map_paths(edits: dict[str, Any], moves: Moves) -> None:
    for mount in edits.get("mounts") or ():
        mount["hostPath"] = _map_path(mount["hostPath"], moves)
    for node in edits.get("deviceNodes") or ():
        there = _map_path(node.get("hostPath") or node["path"], moves)
        node.pop("hostPath", None)
        if there != node["path"]:
            node["hostPath"] = there


def _map_path(path: str, moves: Moves) -> str:
    there = PurePosixPath(path)
    for old, new in moves:
        if there.is_relative_to(old):
            return str(new / there.relative_to(old))
    return str(there)


def lowest_version(document: Mapping[str, Any]) -> Version | None:
    """Return the lowest version that has all of it; None where it says what we do not know."""
    edits = list(_edits(document))
    if any(key not in EDITS for each in edits for key in each):
        return None
    keys = (
        key for each in edits for key, value in each.items() if value or (key == RDT and value is not None)
    )
    versions = [LOWEST, *(EDITS[key] for key in keys)]
    versions += [HOST_PATHS for node in _all(edits, "deviceNodes") if node.get("hostPath")]
    versions += [MOUNT_TYPES for mount in _all(edits, "mounts") if mount.get("type")]
    versions += [HOST_PATHS for device in document["devices"] if str(device["name"])[:1].isdigit()]
    versions += [ANNOTATIONS for each in (document, *document["devices"]) if each.get("annotations")]
    versions += [ANNOTATIONS] if "." in document["kind"].partition("/")[2] else []
    return max(versions)


def _all(edits: Iterable[Mapping[str, Any]], key: str) -> Iterator[Mapping[str, Any]]:
    return (one for each in edits for one in each.get(key) or ())


def _unusable(why: str, remedy: str) -> InstallerError:
    return InstallerError(f"take what nvidia-ctk generates ({why})", remedy=remedy, code="cdi-failed")


class Plain(str):
    """A word without quotes: it may stand for a number, or for yes or no."""

    __slots__ = ()


_NAMES: Final = dict[str, str]()  # of keys, by what they are in any case


def _table(optional: Mapping[str, Any], **needed: Any) -> Any:
    """Return the type of a table with no other keys; what is ``optional`` may be null."""
    fields: Any = [*needed.items(), *((name, kind | None, None) for name, kind in optional.items())]
    _NAMES.update((name.casefold(), name) for name in (*needed, *optional))
    return defstruct("Table", fields, forbid_unknown_fields=True)


_FILLED: Final = Annotated[str, Meta(min_length=1)]
_TEXTS: Final = list[str | None]
_VARIABLES: Final = list[Annotated[str, Meta(pattern="^[^=]+=")]]
_LABELS: Final = {"annotations": dict[str, str | None]}
_NODE: Final = {
    **dict.fromkeys(("major", "minor", "fileMode", "uid", "gid"), Plain),
    "hostPath": str,
    "type": Literal["", "b", "c", "u", "p"],
    "permissions": Annotated[str, Meta(pattern=r"^[rwm]*\Z")],
}
_HOOK: Final = {"args": _TEXTS, "env": _VARIABLES, "timeout": Plain}
_STAGE: Final = Literal[
    "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"
]
_OF_RDT: Final = {
    **dict.fromkeys(("l3CacheSchema", "memBwSchema"), str),
    **dict.fromkeys(("enableCMT", "enableMBM"), Plain),
    "closID": Annotated[str, Meta(pattern=r"^(?!\.{1,2}\Z)[^/\n]*\Z", max_length=4095)],  # a file's name
}
_EDITS: Final = _table(
    {
        "env": _VARIABLES,
        "deviceNodes": GenericAlias(list, _table(_NODE, path=_FILLED)),
        "hooks": GenericAlias(list, _table(_HOOK, hookName=_STAGE, path=_FILLED)),
        "mounts": GenericAlias(
            list, _table({"options": _TEXTS, "type": str}, hostPath=_FILLED, containerPath=_FILLED)
        ),
        RDT: _table(_OF_RDT),
        GROUPS: list[Plain | None],
    }
)
_DEVICES: Final = GenericAlias(list, _table(_LABELS, name=str, containerEdits=_EDITS))
_SPECIFICATION: Final = _table(
    _LABELS | {"containerEdits": _EDITS}, cdiVersion=str, kind=str, devices=_DEVICES
)
# Later ones have keys that are not here.
_KNOWN: Final = frozenset({(0, 3, 0), (0, 4, 0), (0, 5, 0), (0, 6, 0), (0, 7, 0), (0, 8, 0), (1, 0, 0)})
_VERSION: Final = re.compile(r"v?(\d{1,4}(?:\.\d{1,4}){2})")


def read_devices(text: str, kind: str, highest: Version | None = None) -> frozenset[str]:
    """Return the names of the devices of this kind that a specification, in YAML or JSON, gives engines.

    They read none of a later version than ``highest``, None if unknown. InstallerError where it is
    out of the bounds within which one is read.
    """
    around = re.compile(rf"(?<![\w.-]){kind}(?![\w.-])")
    # Most of what is beside ours is of another kind, and is not read for nothing.
    if not around.search(text) and "\\" not in text:
        return frozenset()
    with suppress(*MISTAKEN):
        document = _normalize_keys(read_yaml(text))
        version = _VERSION.fullmatch(document["cdiVersion"])
        number = tuple(map(int, version[1].split("."))) if version else ()
        is_read = document["kind"] == kind and number and (highest is None or number <= highest)
        # What is right in a later one is not known here.
        if is_read and (number > max(_KNOWN) or (number in _KNOWN and _is_whole(document, number))):
            return frozenset(device["name"] for device in document["devices"])
    return frozenset()


def _normalize_keys(value: Any) -> Any:
    """Return a document with its keys as they are called: any case is taken, of two the last by name."""
    if isinstance(value, list):
        return [_normalize_keys(each) for each in value]
    if isinstance(value, dict):
        return {_NAMES.get(key.casefold(), key): _normalize_keys(value[key]) for key in sorted(value)}
    return value


def _is_whole(document: Mapping[str, Any], version: Version) -> bool:
    """Tell whether all of it is right, and of no later version than it says; MISTAKEN where it is not."""
    convert(document, _SPECIFICATION)
    names = [device["name"] for device in document["devices"]]
    edits = [device["containerEdits"] for device in document["devices"]]
    return (
        bool(names)
        and len({*names}) == len(names)
        and all(DEVICE.fullmatch(f"a.b/c={name}") for name in names)
        and all(any(each.values()) or each.get(RDT) is not None for each in edits)
        and (lowest_version(document) or LOWEST) <= version
    )


SIZE: Final = 1 << 20  # characters; the specification of a node with 128 devices has 130,000, and 7 levels
DEPTH: Final = 32
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})


def read_yaml(text: str) -> Any:
    """Return tables, lists, texts and None; a word without quotes is ``Plain``.

    ValueError where no engine reads it, InstallerError where it is out of bounds, or engines read more of it.
    """
    import yaml  # most nodes have no such file
    from yaml.events import DocumentStartEvent

    if len(text) > SIZE:
        raise _unreadable(f"it has more than {SIZE >> 20} MiB")
    if "\\/" in text:
        raise _unreadable("it has a slash that is escaped")
    # U+FFFD stands for what is no UTF-8: with one such byte, in a comment too, engines read nothing of it.
    if "\ufffd" in text:
        raise ValueError("no text that engines read")
    events = yaml.parse(text.removeprefix("\ufeff"), getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    try:
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if event.version or event.tags:
                    raise _unreadable("it has directives")
                value = _value(next(events), events, 0)
                next(events)  # what stands behind it on its line is refused here
                return value
    except yaml.YAMLError as error:
        raise ValueError("no YAML") from error
    return None


def _value(event: "Event", events: "Iterator[Event]", depth: int) -> Any:
    from yaml.events import AliasEvent, CollectionEndEvent, ScalarEvent, SequenceStartEvent

    if depth == DEPTH:
        raise _unreadable(f"it has more than {DEPTH} levels")
    if isinstance(event, AliasEvent) or getattr(event, "tag", None):
        raise _unreadable("it has an alias or a tag")
    if isinstance(event, ScalarEvent):
        event.value.encode()  # half a character is refused
        return event.value if event.style else None if event.value in _NULL else Plain(event.value)
    inner = takewhile(lambda each: not isinstance(each, CollectionEndEvent), events)
    items = [_value(each, events, depth + 1) for each in inner]
    if isinstance(event, SequenceStartEvent):
        return items
    table = dict(zip(items[::2], items[1::2], strict=True))
    if len(table) < len(items) / 2 or not all(isinstance(key, str) for key in table):
        raise ValueError("a key that is no text, or that is there already")
    if any(key == "<<" and isinstance(key, Plain) for key in table):
        raise _unreadable("it has tables that are merged into others")
    return table


def _unreadable(reason: str) -> InstallerError:
    remedy = "remove it, or ask for another one from whoever made it"
    return InstallerError(f"read a CDI specification ({reason})", remedy=remedy, code="cdi-failed")
