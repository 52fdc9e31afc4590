"""What a container with the installer is given of its node, and how it is stopped."""

from contextlib import suppress
from pathlib import Path

from tests.engines.cri import Cri, CriError
from tests.engines.payload import ARTIFACTS

PROJECT = str(Path(__file__).parent.parent.parent)
# The test image is a busybox: the node's own Python and the project come in as mounts.
MOUNTS = {
    "/host": "/",
    "/usr": "/usr",
    "/lib": "/usr/lib",
    "/lib64": "/usr/lib64",
    PROJECT: PROJECT,
    ARTIFACTS: ARTIFACTS,
}
LOG = "installer.log"
GRACE_S = 30
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}


def stop(cri: Cri, container: str) -> None:
    """Stop a container as the kubelet does: its call ends with the containerd that took it, so it asks again."""
    with suppress(CriError):
        cri.stop_container(container, GRACE_S)
    cri.wait()
    cri.stop_container(container, GRACE_S)
