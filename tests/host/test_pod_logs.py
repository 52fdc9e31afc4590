"""The next pod of our DaemonSet, by the directories that the kubelet makes for the logs of pods."""

from pathlib import Path, PurePosixPath

import pytest

from installer.host import kernel
from installer.host.files import Host
from installer.host.kubernetes import is_replica_made

NAMESPACE = "gpu"
OWN = "toolkit-abcde"
UID = "6c1b0a52-7f6e-4a3c-9d8e-0123456789ab"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return a node with our pod's directory, and the mounts that the kubelet and the host's root give a pod."""
    monkeypatch.setenv("HOSTNAME", OWN)
    lines = (
        "600 599 0:50 / / rw - overlay overlay rw",
        "602 600 8:1 /kubelet/pods/other-uid/etc-hosts /host/etc/hosts rw - ext4 /dev/sda1 rw",
        f"601 600 8:1 /kubelet/pods/{UID}/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw",
    )
    (tmp_path / "mountinfo").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(kernel, "MOUNTINFO", tmp_path / "mountinfo")
    host = Host.under(PurePosixPath(tmp_path))
    make(host, NAMESPACE, OWN, UID)
    return host


def make(host: Host, namespace: str, name: str, uid: str) -> None:
    Path(host.local_path(PurePosixPath(f"/var/log/pods/{namespace}_{name}_{uid}"))).mkdir(parents=True)


def test_a_pod_of_our_name_in_another_namespace_is_not_ours(host: Host) -> None:
    # In the order of names it is ahead of ours.
    make(host, "a-tenant", OWN, "other-uid")
    make(host, "a-tenant", "toolkit-fghij", "their-uid")

    assert is_replica_made(host, 0) is False


def test_the_next_pod_is_seen_beside_a_pod_of_our_name_in_another_namespace(host: Host) -> None:
    make(host, "a-tenant", OWN, "other-uid")
    make(host, NAMESPACE, "toolkit-fghij", "next-uid")

    assert is_replica_made(host, 0) is True


def test_a_pod_on_the_nodes_network_knows_its_name(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", "gpu-node-1")
    make(host, NAMESPACE, "toolkit-fghij", "next-uid")

    assert is_replica_made(host, 0) is True


def test_without_the_mount_of_a_kubelet_the_name_counts(host: Host) -> None:
    kernel.MOUNTINFO.write_text("600 599 0:50 / / rw - overlay overlay rw\n")
    make(host, NAMESPACE, "toolkit-fghij", "next-uid")

    assert is_replica_made(host, 0) is True


def test_outside_a_pod_there_is_no_next_pod(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.MOUNTINFO.write_text("600 599 0:50 / / rw - overlay overlay rw\n")
    monkeypatch.setenv("HOSTNAME", "gpu-node-1")

    assert is_replica_made(host, 0) is None
