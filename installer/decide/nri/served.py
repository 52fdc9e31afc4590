"""Which engines really inject the CDI devices that a plugin names: the others drop them without a word.

Both the field in NRI and the engine's own injector are needed (engine-facts.md#nri-cdi).
"""

import re
from typing import Final

from installer.decide.errors import InstallerError

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


def refuse_dropping(engine: str, version: str) -> None:
    """Return where the engine injects what a plugin asks for.

    Raises:
        InstallerError: it would start containers without their devices, or nobody knows.
    """
    found = _VERSION.match(version)
    if engine not in INJECTS or found is None:
        raise InstallerError(
            f"give CDI devices by NRI (nobody knows whether {engine or 'an engine without a name'} {version} "
            "injects them)",
            remedy=_UPGRADE,
            code="nri-unusable",
        )
    number = (int(found[1]), int(found[2]), int(found[3] or 0))
    if not any(least <= number and (end is None or number < end) for least, end in INJECTS[engine]):
        raise InstallerError(
            f"give CDI devices by NRI ({engine} {version} takes them and starts the container without them)",
            remedy=_UPGRADE,
            code="nri-unusable",
        )
