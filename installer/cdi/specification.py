"""CDI specifications: write ours for the host's paths and engines, and read the specifications of others.

An engine reads a whole specification or ignores all of it, as the engines' common library does
(tags.cncf.io/container-device-interface): a wrong device, an unknown key or a cut text hides all devices.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
ALL_GPUS: Final = "all"  # a device in each specification of nvidia-ctk
# The first version of the format with each key of an edit (CDI specification, "Released versions").
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
ANNOTATIONS: Final = (0, 6, 0)  # also for a class with a dot
# Exceptions for a text of another shape.
MISTAKEN: Final = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


def specification(text: str, kind: str, moves: Moves, highest: Version | None = None) -> str:
    """Return the specification of nvidia-ctk as JSON, with the host's paths instead of this process's.

    Args:
        text: the output of nvidia-ctk.
        kind: the expected kind of the devices.
        moves: roots as this process finds them, each with the host's path.
        highest: the highest version that every engine reads; None for any. Below the version of device groups
            they are left out.

    Raises:
        InstallerError: the text is no specification of this kind, has no devices, or needs a later version.
    """
    deepest_first = sorted(moves, key=_depth_of_move, reverse=True)
    try:
        document = json.loads(text)
        _refuse_empty(document, kind)
        for edits in _edits(document):
            _map_paths(edits, deepest_first)
            if highest is not None and highest < EDITS[GROUPS]:
                edits.pop(GROUPS, None)
        lowest = lowest_version(document)
    except MISTAKEN as error:
        remedy = "choose a release of the toolkit from 1.12 on"
        raise _unusable("it is no specification in JSON", remedy) from error
    if lowest is not None:
        if highest is not None and lowest > highest:
            reason = f"it is of version {_dotted(lowest)}, and an engine here reads up to {_dotted(highest)}"
            raise _unusable(reason, "upgrade that engine")
        document["cdiVersion"] = _dotted(lowest)
    return json.dumps(document, indent=1) + "\n"


def _depth_of_move(move: tuple[PurePosixPath, PurePosixPath]) -> int:
    local, _ = move
    return len(local.parts)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def device_names(text: str) -> frozenset[str]:
    """Return the names of the devices in our specification; none for another text."""
    with suppress(*MISTAKEN):
        return frozenset(str(device["name"]) for device in json.loads(text)["devices"])
    return frozenset()


def named_paths(text: str) -> tuple[str, ...]:
    """Return the host's files and device nodes in a specification; none for another text."""
    with suppress(*MISTAKEN):
        edits = list(_edits(json.loads(text)))
        paths = []
        for node in _all(edits, "deviceNodes"):
            paths.append(node.get("hostPath") or node.get("path"))
        for mount in _all(edits, "mounts"):
            paths.append(mount.get("hostPath"))
        absolute = [path for path in paths if isinstance(path, str) and path.startswith("/")]
        return tuple(dict.fromkeys(absolute))
    return ()


def _refuse_empty(document: Mapping[str, Any], kind: str) -> None:
    """Raise InstallerError for a specification of another kind, or without devices, nodes or files."""
    if document["kind"] != kind or not [device["name"] for device in document["devices"]]:
        raise _unusable(f"it has no devices of {kind}", "check the driver with nvidia-smi")
    if not any(edits.get("deviceNodes") for edits in _edits(document)):
        raise _unusable("it names no device", "load the driver's modules")
    if not any(edits.get("mounts") for edits in _edits(document)):
        # nvidia-ctk exits with 0 although the driver's root is a link (engine-facts.md#gpu-specification).
        raise _unusable("it names no file of the driver", "give the real directory of the driver's root")


def _edits(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the edits of a container for each device, then the edits for all devices."""
    for device in document["devices"]:
        yield device["containerEdits"]
    if document.get("containerEdits"):
        yield document["containerEdits"]


def _map_paths(edits: dict[str, Any], moves: Moves) -> None:
    """Replace this process's paths by the host's in the edits of a device."""
    for mount in edits.get("mounts") or ():
        mount["hostPath"] = _map_path(mount["hostPath"], moves)
    for node in edits.get("deviceNodes") or ():
        host_path = _map_path(node.get("hostPath") or node["path"], moves)
        node.pop("hostPath", None)
        if host_path != node["path"]:
            node["hostPath"] = host_path


def _map_path(text: str, moves: Moves) -> str:
    path = PurePosixPath(text)
    for local, on_host in moves:
        if path.is_relative_to(local):
            return str(on_host / path.relative_to(local))
    return str(path)


def lowest_version(document: Mapping[str, Any]) -> Version | None:
    """Return the lowest version of the format with all keys of a document; None with an unknown key."""
    edits = list(_edits(document))
    for edit in edits:
        if not edit.keys() <= EDITS.keys():
            return None

    versions: list[Version] = [LOWEST]
    for edit in edits:
        for key, value in edit.items():
            if value or (key == RDT and value is not None):
                versions.append(EDITS[key])
    versions += _list_value_versions(document, edits)
    _, _, device_class = document["kind"].partition("/")
    if "." in device_class:
        versions.append(ANNOTATIONS)
    return max(versions)


def _list_value_versions(
    document: Mapping[str, Any], edits: Sequence[Mapping[str, Any]]
) -> Iterator[Version]:
    """Yield the first version for each value inside edits, and for each device."""
    for node in _all(edits, "deviceNodes"):
        if node.get("hostPath"):
            yield HOST_PATHS
    for mount in _all(edits, "mounts"):
        if mount.get("type"):
            yield MOUNT_TYPES
    for device in document["devices"]:
        if str(device["name"])[:1].isdigit():
            yield HOST_PATHS
    for table in (document, *document["devices"]):
        if table.get("annotations"):
            yield ANNOTATIONS


def _all(edits: Iterable[Mapping[str, Any]], key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the tables in the list ``key`` of all edits."""
    for edit in edits:
        yield from edit.get(key) or ()


def _unusable(reason: str, remedy: str) -> InstallerError:
    return InstallerError(f"take what nvidia-ctk generates ({reason})", remedy=remedy, code="cdi-failed")


class Plain(str):
    """A word without quotes, which may stand for a number, or for yes or no."""

    __slots__ = ()


_NAMES: Final = dict[str, str]()  # the keys, by their casefolded names


def _table(optional: Mapping[str, Any], **needed: Any) -> Any:
    """Return the type of a table without other keys; an ``optional`` key may be null."""
    fields: list[Any] = list(needed.items())
    fields += [(name, kind | None, None) for name, kind in optional.items()]
    for name in (*needed, *optional):
        _NAMES[name.casefold()] = name
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
# Later versions have keys that are unknown here.
_KNOWN: Final = frozenset({(0, 3, 0), (0, 4, 0), (0, 5, 0), (0, 6, 0), (0, 7, 0), (0, 8, 0), (1, 0, 0)})
_VERSION: Final = re.compile(r"v?(\d{1,4}(?:\.\d{1,4}){2})")


def read_devices(text: str, kind: str, highest: Version | None = None) -> frozenset[str]:
    """Return the names of a specification's devices of a kind, as engines read the text.

    Args:
        text: a specification in YAML or JSON.
        kind: the kind of the devices.
        highest: the highest version for the engines; None if unknown.

    Raises:
        InstallerError: the text exceeds the bounds of ``read_yaml``.
    """
    # Most specifications beside ours are of another kind, and need not be read.
    whole_kind = re.compile(rf"(?<![\w.-]){kind}(?![\w.-])")
    names_kind = kind in text and bool(whole_kind.search(text))
    if not names_kind and "\\" not in text:
        return frozenset()
    with suppress(*MISTAKEN):
        document = _normalize_keys(read_yaml(text))
        version = _version_of(document)
        if document["kind"] == kind and version and _is_read(document, version, highest):
            return frozenset(device["name"] for device in document["devices"])
    return frozenset()


def _version_of(document: Mapping[str, Any]) -> Version:
    """Return the version of a document; an empty version for another text."""
    match = _VERSION.fullmatch(document["cdiVersion"])
    return tuple(map(int, match[1].split("."))) if match else ()


def _is_read(document: Mapping[str, Any], version: Version, highest: Version | None) -> bool:
    """Tell whether engines read a document; MISTAKEN is raised for a document with a mistake."""
    if highest is not None and version > highest:
        return False
    if version > max(_KNOWN):  # the rules of later versions are unknown here
        return True
    return version in _KNOWN and _is_whole(document, version)


def _normalize_keys(value: Any) -> Any:
    """Return a document with its keys in their usual case; of keys equal but for case the last counts."""
    if isinstance(value, list):
        return [_normalize_keys(each) for each in value]
    if isinstance(value, dict):
        return {_NAMES.get(key.casefold(), key): _normalize_keys(value[key]) for key in sorted(value)}
    return value


def _is_whole(document: Mapping[str, Any], version: Version) -> bool:
    """Tell whether a document is right, and needs no later version; MISTAKEN is raised for another shape."""
    convert(document, _SPECIFICATION)
    names = [device["name"] for device in document["devices"]]
    if not names or len({*names}) < len(names):
        return False
    for name in names:
        if not DEVICE.fullmatch(f"a.b/c={name}"):
            return False
    for device in document["devices"]:
        edits = device["containerEdits"]
        if not any(edits.values()) and edits.get(RDT) is None:
            return False
    return (lowest_version(document) or LOWEST) <= version


SIZE: Final = 1 << 20  # characters; the specification of a node with 128 devices has 130,000, and 7 levels
DEPTH: Final = 32
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})


def read_yaml(text: str) -> Any:
    """Return the tables, lists, texts and nulls of a YAML text; a word without quotes is ``Plain``.

    Raises:
        ValueError: no engine reads the text.
        InstallerError: the text is too large, or has a construct that engines read and this program does not.
    """
    import yaml  # most nodes have no such file
    from yaml.events import DocumentStartEvent

    if len(text) > SIZE:
        raise _unreadable(f"it has more than {SIZE >> 20} MiB")
    if "\\/" in text:
        raise _unreadable("it has a slash that is escaped")
    # U+FFFD stands for bytes that are no UTF-8: with such a byte, even in a comment,
    # engines ignore the file.
    if "\ufffd" in text:
        raise ValueError("no text that engines read")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    events = yaml.parse(text.removeprefix("\ufeff"), loader)
    try:
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if event.version or event.tags:
                    raise _unreadable("it has directives")
                value = _value(next(events), events, 0)
                next(events)  # refuses a second value on the same line
                return value
    except yaml.YAMLError as error:
        raise ValueError("no YAML") from error
    return None


def _value(event: "Event", events: "Iterator[Event]", depth: int) -> Any:
    """Return the value of an event; the value's further events are taken from ``events``."""
    from yaml.events import AliasEvent, ScalarEvent, SequenceStartEvent

    if depth == DEPTH:
        raise _unreadable(f"it has more than {DEPTH} levels")
    if isinstance(event, AliasEvent) or getattr(event, "tag", None):
        raise _unreadable("it has an alias or a tag")
    if isinstance(event, ScalarEvent):
        event.value.encode()  # refuses half a character
        if event.style:
            return event.value
        return None if event.value in _NULL else Plain(event.value)
    items = list(_items(events, depth))
    if isinstance(event, SequenceStartEvent):
        return items
    keys = items[::2]
    table = dict(zip(keys, items[1::2], strict=True))
    if len(table) < len(keys) or not all(isinstance(key, str) for key in keys):
        raise ValueError("a key that is no text, or that is there already")
    if any(key == "<<" and isinstance(key, Plain) for key in table):
        raise _unreadable("it has tables that are merged into others")
    return table


def _items(events: "Iterator[Event]", depth: int) -> Iterator[Any]:
    """Yield the values of a list, or the keys and values of a table in turn, up to the end event."""
    from yaml.events import CollectionEndEvent

    for event in events:
        if isinstance(event, CollectionEndEvent):
            return
        yield _value(event, events, depth + 1)


def _unreadable(reason: str) -> InstallerError:
    remedy = "remove it, or ask for another one from whoever made it"
    return InstallerError(f"read a CDI specification ({reason})", remedy=remedy, code="cdi-failed")
