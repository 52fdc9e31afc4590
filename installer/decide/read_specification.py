"""What engines make of a CDI specification of somebody else: they read it whole, or nothing of it.

As the library that they share does (tags.cncf.io/container-device-interface): one device that is wrong, one
key that nobody knows, or a text that breaks off, and none of its devices is there.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from installer.decide.nri.wishes import DEVICE
from installer.decide.read_yaml import FLAGS, Plain, integer, read_yaml
from installer.decide.specification import MISTAKEN, Version, lowest_version

# A shape: a text, a number, "yes or no", any of them by name, a list of a shape, a table of shapes by key.
_TEXT: Final = "text"
_NUMBER: Final = "number"
_UNSIGNED: Final = "number from 0 on"
_FLAG: Final = "yes or no"
_BY_NAME: Final = "by name"
_EDITS: Final[Mapping[str, Any]] = {
    "env": [_TEXT],
    "deviceNodes": [
        dict.fromkeys(("path", "hostPath", "type", "permissions"), _TEXT)
        | dict.fromkeys(("major", "minor"), _NUMBER)
        | dict.fromkeys(("fileMode", "uid", "gid"), _UNSIGNED)
    ],
    "netDevices": [{"hostInterfaceName": _TEXT, "name": _TEXT}],
    "hooks": [{"hookName": _TEXT, "path": _TEXT, "args": [_TEXT], "env": [_TEXT], "timeout": _NUMBER}],
    "mounts": [{"hostPath": _TEXT, "containerPath": _TEXT, "options": [_TEXT], "type": _TEXT}],
    "intelRdt": {
        "closID": _TEXT,
        "l3CacheSchema": _TEXT,
        "memBwSchema": _TEXT,
        "schemata": [_TEXT],
        **dict.fromkeys(("enableCMT", "enableMBM", "enableMonitoring"), _FLAG),
    },
    "additionalGids": [_UNSIGNED],
}
_SPECIFICATION: Final[Mapping[str, Any]] = {
    "cdiVersion": _TEXT,
    "kind": _TEXT,
    "annotations": _BY_NAME,
    "devices": [{"name": _TEXT, "annotations": _BY_NAME, "containerEdits": _EDITS}],
    "containerEdits": _EDITS,
}
# Later ones may have keys that are not here.
_KNOWN: Final = frozenset(
    {(0, 3, 0), (0, 4, 0), (0, 5, 0), (0, 6, 0), (0, 7, 0), (0, 8, 0), (1, 0, 0), (1, 1, 0)}
)
_VERSION: Final = re.compile(r"v?(\d{1,4}(?:\.\d{1,4}){2})")
_BITS: Final = {_NUMBER: 64, _UNSIGNED: 32}
_RDT: Final = "intelRdt"
_WITH_RDT: Final = (0, 7, 0)
_NEWEST: Final = (1, 1, 0)  # that has these:
_NEW: Final = {"netDevices"}
_NEW_OF_RDT: Final = {"schemata", "enableMonitoring"}
_LONGEST_CLOS: Final = 4095  # bytes
_NODES: Final = frozenset({"", "b", "c", "u", "p"})
_HOOKS: Final = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)


def devices(text: str, kind: str, highest: Version | None = None) -> frozenset[str]:
    """Return the names of the devices of this kind that a specification, in YAML or JSON, gives engines.

    They read none of a later version than ``highest``, None where nobody knows it. JSON is read as YAML.

    Raises:
        InstallerError: it is out of the bounds within which one is read.
    """
    around = re.compile(rf"(?<![\w.-]){kind}(?![\w.-])")
    # Most of what is beside ours is of another kind, and is not read for nothing.
    if not around.search(text) and "\\" not in text and "!" not in text:
        return frozenset()
    try:
        read = read_yaml(text)
        said = _shaped(read, _SPECIFICATION, strict=False)
        version = _VERSION.fullmatch(said.get("cdiVersion") or "")
        number = tuple(map(int, version[1].split("."))) if version else ()
        if said.get("kind") != kind or not number or (highest is not None and number > highest):
            return frozenset()
        # Of a later one nobody knows all that is right.
        right = number > max(_KNOWN) or (
            number in _KNOWN and _is_whole(_shaped(read, _SPECIFICATION, strict=True), number)
        )
        return (
            frozenset(device.get("name") or "" for device in said.get("devices") or ())
            if right
            else frozenset()
        )
    except MISTAKEN:
        return frozenset()


def _shaped(value: Any, shape: Any, *, strict: bool) -> Any:
    """Return a value of a shape, its keys as they are called: any case is taken, of two the last by name.

    Raises:
        ValueError: it is of another, or, where ``strict``, has a key that nobody knows.
    """
    if value is None:
        return None
    if isinstance(shape, list) and isinstance(value, list):
        return [_shaped(each, shape[0], strict=strict) for each in value]
    if isinstance(shape, Mapping) and isinstance(value, dict):
        names = {name.casefold(): name for name in shape}
        if strict and any(key.casefold() not in names for key in value):
            raise ValueError("a key that nobody knows")
        known = {name: value[key] for key in sorted(value) if (name := names.get(key.casefold()))}
        return {name: _shaped(each, shape[name], strict=strict) for name, each in known.items()}
    if shape == _BY_NAME and isinstance(value, dict):
        return {name: _shaped(each, _TEXT, strict=strict) for name, each in value.items()}
    if not isinstance(value, str) or not isinstance(shape, str) or shape == _BY_NAME:
        raise ValueError("another shape")
    if (bits := _BITS.get(shape)) is not None:
        integer(value if isinstance(value, Plain) else "", bits)
    if shape == _FLAG and not (isinstance(value, Plain) and value in FLAGS):
        raise ValueError("neither yes nor no")
    return value


def _is_whole(said: Mapping[str, Any], version: Version) -> bool:
    """Tell whether all of it is right, and of no later version than it says."""
    devices = said.get("devices") or []
    names = [device.get("name") or "" for device in devices]
    filled = {**said, "devices": [{"containerEdits": {}, **device} for device in devices]}
    needed = lowest_version(filled)
    return (
        bool(names)
        and len({*names}) == len(names)
        and all(DEVICE.fullmatch(f"a.b/c={name}") for name in names)
        and all(_is_of_use(device.get("containerEdits") or {}) for device in devices)
        and all(
            _right(edits) and _is_known(edits, version)
            for edits in (each.get("containerEdits") or {} for each in (said, *devices))
        )
        and (needed is None or needed <= version)
    )


def _is_of_use(edits: Mapping[str, Any]) -> bool:
    return any(edits.values()) or edits.get(_RDT) is not None


def _is_known(edits: Mapping[str, Any], version: Version) -> bool:
    """Tell whether a version has all keys; as ``lowest_version`` does of other keys that are filled."""
    rdt = edits.get(_RDT)
    if version >= _NEWEST:
        return True
    return (
        rdt is None or (version >= _WITH_RDT and not _NEW_OF_RDT & rdt.keys())
    ) and not _NEW & edits.keys()


def _right(edits: Mapping[str, Any]) -> bool:
    hooks = edits.get("hooks") or ()
    clos = (edits.get(_RDT) or {}).get("closID") or ""
    return (
        _variables(edits.get("env"))
        and clos not in {".", ".."}
        and not {*"/\n"} & {*clos}
        and len(clos.encode()) <= _LONGEST_CLOS
        and all(
            node.get("path")
            and (node.get("type") or "") in _NODES
            and {*(node.get("permissions") or "")} <= {*"rwm"}
            for node in edits.get("deviceNodes") or ()
        )
        and all(mount.get("hostPath") and mount.get("containerPath") for mount in edits.get("mounts") or ())
        and all(hook.get("hookName") in _HOOKS and hook.get("path") for hook in hooks)
        and all(_variables(hook.get("env")) for hook in hooks)
    )


def _variables(env: Iterable[str | None] | None) -> bool:
    return all((each or "").find("=") > 0 for each in env or ())
