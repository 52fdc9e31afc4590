"""Which CDI devices a pod asks for, and whether it may; and which engines really inject what a plugin names.

Whoever may make a pod chooses its annotations. So a namespace gets a kind of device only where the admin of
the node has said so, and everything else is an error: a container never starts without what its pod asks for.
Engines that do not inject drop the devices without a word: the field in NRI and the engine's own injector
are needed (engine-facts.md#nri-cdi).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from installer.errors import InstallerError, Option, Remedy
from installer.model.nri import DEVICE, Allowed

# As NVIDIA's plugin reads them: the first that is there counts, alone.
FOR_CONTAINER: Final = "nvidia.cdi.k8s.io/container."
FOR_POD: Final = ("nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io")
# Ours, at each container that got its devices: so a plugin started anew knows which ones were missed.
GIVEN: Final = "toolkit-installer.nri/devices"

# So much of a tenant's text is logged: an annotation has up to 256 KiB.
_SHOWN: Final = 80
_NAMED: Final = 10


def shorten(text: str) -> str:
    """Return as much of a tenant's text as is logged."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return as many of a tenant's names as are logged."""
    more = len(names) - _NAMED
    return [*map(shorten, names[:_NAMED]), *([f"... {more} more"] if more > 0 else [])]


class RefusedError(InstallerError):
    """A container may not be created as its pod asks."""

    usual = "nri-refused"


class ForbiddenError(RefusedError):
    """A pod asks for what its namespace may not have."""


def requested_devices(
    pod: Mapping[str, Any], container: Mapping[str, Any], allowed: Iterable[Allowed]
) -> tuple[str, ...]:
    """Return the CDI devices that a container is to get, each once; RefusedError: the request is wrong."""
    key = requested_by(pod, container)
    if key is None:
        return ()
    value = pod["annotations"][key]
    where = f"container {container['name']} of pod {pod['namespace']}/{pod['name']}"
    if _is_wrong(key):
        raise RefusedError(
            f"create {where} (its annotation {shorten(key)} is none that asks for devices)",
            remedy=f"write {FOR_CONTAINER}NAME or {' or '.join(FOR_POD)}, or remove the annotation",
        )
    names = tuple(dict.fromkeys(name for each in value.split(",") if (name := each.strip())))
    if not names:
        raise RefusedError(
            f"create {where} (its annotation {key} names no device)",
            remedy="write VENDOR/CLASS=NAME there, or remove the annotation",
        )
    kinds = {allows.kind for allows in allowed if allows.namespace == pod["namespace"]}
    for name in names:
        found = DEVICE.fullmatch(name)
        if found is None:
            raise RefusedError(
                f"create {where} (its annotation {key} asks for {shorten(name)!r}, which is no CDI device)",
                remedy="write VENDOR/CLASS=NAME there, several with commas",
            )
        if found["kind"] not in kinds:
            wanted = Option("nri-allow", f"{pod['namespace']}={shorten(found['kind'])}")
            raise ForbiddenError(
                f"create {where} (its annotation {key} asks for {shorten(name)}: its namespace may not)",
                remedy=Remedy("give the plugin ", wanted, " if it should, or remove the annotation"),
            )
    return names


def requested_by(pod: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    """Return the annotation of a pod that asks for a container, a wrong one first; None without any."""
    keys = (*filter(_is_wrong, pod["annotations"]), f"{FOR_CONTAINER}{container['name']}", *FOR_POD)
    return next((key for key in keys if key in pod["annotations"]), None)


def _is_wrong(key: str) -> bool:
    return key.startswith(f"{FOR_POD[1]}/") and not (key in FOR_POD or key.startswith(FOR_CONTAINER))


def may_ask(annotations: Iterable[str]) -> bool:
    """Tell whether annotations of a pod may ask for one of its containers."""
    return any(key.partition("/")[0] == FOR_POD[1] for key in annotations)


Version = tuple[int, int, int]
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
# By the name that an engine gives itself in Configure: from a version on, and up to the next that does not.
INJECTS: Final[dict[str, tuple[tuple[Version, Version | None], ...]]] = {
    "containerd": (((1, 7, 30), (2, 0, 0)), ((2, 1, 0), None)),
    "cri-o": (((1, 34, 0), None),),
}
_UPGRADE: Final = (
    "upgrade to containerd 2.1 (or 1.7.30, with enable_cdi = true) or CRI-O 1.34, or let a device plugin "
    "ask by CRI (cdi-cri)"
)


def refuse_dropping(name: str, text: str) -> None:
    """Raise unless the engine injects what a plugin asks for; others start containers without it."""
    found = _VERSION.match(text)
    if name not in INJECTS or found is None:
        reason = f"it is not known whether {name or 'an engine without a name'} {text} injects them"
    else:
        number = (int(found[1]), int(found[2]), int(found[3] or 0))
        if any(least <= number and (end is None or number < end) for least, end in INJECTS[name]):
            return
        reason = f"{name} {text} takes them and starts the container without them"
    raise InstallerError(f"give CDI devices by NRI ({reason})", remedy=_UPGRADE, code="nri-unusable")
