"""A CDI specification as data: with the host's paths, and of the lowest version that has all it says."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from installer.decide.errors import InstallerError

Version: TypeAlias = tuple[int, ...]
Moves: TypeAlias = Sequence[tuple[PurePosixPath, PurePosixPath]]
GROUPS: Final = "additionalGids"
ALL_GPUS: Final = "all"  # a device of each that nvidia-ctk generates
# Since which version of the format an edit may have these (CDI specification, "Released versions").
EDITS: Final[Mapping[str, Version]] = {
    "env": (0, 3, 0),
    "deviceNodes": (0, 3, 0),
    "mounts": (0, 3, 0),
    "hooks": (0, 3, 0),
    "intelRdt": (0, 7, 0),
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

    Raises:
        InstallerError: that is no specification of this kind, an empty one, or of too late a version.
    """
    try:
        said = json.loads(text)
        _refuse_empty(said, kind)
        for edits in _edits(said):
            _move(edits, sorted(moves, key=lambda pair: -len(pair[0].parts)))
            if highest is not None and highest < EDITS[GROUPS]:
                edits.pop(GROUPS, None)
        lowest = lowest_version(said)
    except MISTAKEN as error:
        remedy = "choose a release of the toolkit from 1.12 on"
        raise _refused("it is no specification in JSON", remedy) from error
    if lowest is not None and highest is not None and lowest > highest:
        read, needed = (".".join(map(str, each)) for each in (highest, lowest))
        raise _refused(
            f"it is of version {needed}, and an engine here reads up to {read}", "upgrade that engine"
        )
    if lowest is not None:
        said["cdiVersion"] = ".".join(map(str, lowest))
    return json.dumps(said, indent=1) + "\n"


def device_names(text: str) -> frozenset[str]:
    """Return the names of the devices of a specification of ours; none of another text."""
    try:
        return frozenset(str(device["name"]) for device in json.loads(text)["devices"])
    except MISTAKEN:
        return frozenset()


def named(text: str) -> tuple[str, ...]:
    """Return the files and device nodes of the host that a specification names; none of another text."""
    try:
        said = json.loads(text)
        paths = [path for edits in _edits(said) for path in _paths(edits)]
    except MISTAKEN:
        return ()
    return tuple(dict.fromkeys(path for path in paths if isinstance(path, str) and path.startswith("/")))


def _paths(edits: Mapping[str, Any]) -> Iterator[Any]:
    yield from (node.get("hostPath") or node.get("path") for node in edits.get("deviceNodes") or ())
    yield from (mount.get("hostPath") for mount in edits.get("mounts") or ())


def _refuse_empty(said: Mapping[str, Any], kind: str) -> None:
    if said["kind"] != kind or not [device["name"] for device in said["devices"]]:
        raise _refused(f"it has no devices of {kind}", "check the driver with nvidia-smi")
    if not any(edits.get("deviceNodes") for edits in _edits(said)):
        raise _refused("it names no device", "load the driver's modules")
    if not any(edits.get("mounts") for edits in _edits(said)):
        # So it is where the driver's root is a link: it ends well (engine-facts.md#gpu-specification).
        raise _refused("it names no file of the driver", "give the real directory of the driver's root")


def _edits(said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is done to a container for each device, and for all."""
    yield from (device["containerEdits"] for device in said["devices"])
    if said.get("containerEdits"):
        yield said["containerEdits"]


def _move(edits: dict[str, Any], moves: Moves) -> None:
    for mount in edits.get("mounts") or ():
        mount["hostPath"] = _moved(mount["hostPath"], moves)
    for node in edits.get("deviceNodes") or ():
        there = _moved(node.get("hostPath") or node["path"], moves)
        node.pop("hostPath", None)
        if there != node["path"]:
            node["hostPath"] = there


def _moved(path: str, moves: Moves) -> str:
    there = PurePosixPath(path)
    for old, new in moves:
        if there.is_relative_to(old):
            return str(new / there.relative_to(old))
    return str(there)


def lowest_version(said: Mapping[str, Any]) -> Version | None:
    """Return the lowest version that has all of it; None where it says what we do not know."""
    edits = list(_edits(said))
    if any(key not in EDITS for each in edits for key in each):
        return None
    versions = [LOWEST, *(EDITS[key] for each in edits for key, value in each.items() if value)]
    versions += [HOST_PATHS for node in _all(edits, "deviceNodes") if node.get("hostPath")]
    versions += [MOUNT_TYPES for mount in _all(edits, "mounts") if mount.get("type")]
    versions += [HOST_PATHS for device in said["devices"] if str(device["name"])[:1].isdigit()]
    annotated = said.get("annotations") or any(device.get("annotations") for device in said["devices"])
    if annotated or "." in said["kind"].partition("/")[2]:
        versions.append(ANNOTATIONS)
    return max(versions)


def _all(edits: Iterable[Mapping[str, Any]], key: str) -> Iterator[Mapping[str, Any]]:
    return (one for each in edits for one in each.get(key) or ())


def _refused(why: str, remedy: str) -> InstallerError:
    return InstallerError(f"take what nvidia-ctk generates ({why})", remedy=remedy, code="cdi-failed")
