"""The pods of a node, by the directories that its kubelet makes for their logs."""

import os
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.host.files import Host
from installer.host.inodes import changed_s

# NAMESPACE_NAME_UID, made right before the pod's sandbox (engine-facts.md#kubelet-pod-logs).
POD_LOGS: Final = PurePosixPath("/var/log/pods")
OWN_NAME: Final = "HOSTNAME"


def replicas(host: Host) -> tuple[PurePosixPath, ...] | None:
    """Return the directories of the other pods of our DaemonSet; None where we are no pod."""
    name = os.environ.get(OWN_NAME, "")
    try:
        found = host.names(POD_LOGS) if name else ()
    except InstallerError:
        return None
    own = next((each for each in found if each.split("_")[1:-1] == [name]), None)
    if own is None:
        return None
    beginning = f"{own.partition('_')[0]}_{name.rpartition('-')[0]}-"
    return tuple(POD_LOGS / each for each in found if each != own and _is_alike(each, beginning))


def _is_alike(directory: str, beginning: str) -> bool:
    """Tell whether a pod's name is that of its DaemonSet and one more word."""
    return directory.startswith(beginning) and "-" not in directory.removeprefix(beginning).partition("_")[0]


def changed_since(host: Host, directories: Iterable[PurePosixPath], moment_s: float) -> bool:
    """Tell whether one of ``directories`` was made or changed since a moment."""
    return any(changed_s(host.local_path(path)) > moment_s for path in directories)
