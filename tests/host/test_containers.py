import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.engines.containers import STATES, TASKS, list_crio_containers, list_shim_containers
from installer.host.files import Host
from installer.model.facts import Container

OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
ID = "3f6c0d5e8a9b4c7d"
POD = {"io.kubernetes.cri.sandbox-namespace": "train", "io.kubernetes.cri.sandbox-name": "bert-0"}


def _bundle(root: Path, place: str, **files: Any) -> None:
    bundle = root / place
    bundle.mkdir(parents=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (bundle / (name if name == "runtime" else f"{name}.json")).write_text(text)


@pytest.mark.parametrize(
    ("place", "files", "found"),
    [
        pytest.param(
            f"run/containerd/{TASKS}/k8s.io/{ID}",
            {"options": {"binary_name": str(OURS)}, "config": {"annotations": POD}},
            Container("containerd", ID, "train/bert-0", OURS),
            id="a pod of the kubelet's",
        ),
        pytest.param(
            f"run/containerd/{TASKS}/default/{ID}",
            {"runtime": f"{OURS}\n"},
            Container("containerd", ID, ID[:12], OURS),
            id="ctr, without options",
        ),
        pytest.param(
            f"run/docker/containerd/daemon/{TASKS}/moby/{ID}",
            {"options": {"binary_name": str(OURS), "root": "/var/run/docker/runtime-runc"}},
            Container("docker", ID, ID[:12], OURS),
            id="dockerd with its own containerd",
        ),
        pytest.param(
            f"run/containerd/{TASKS}/moby/{ID}",
            {"options": {"binary_name": str(OURS)}, "config": {}},
            Container("docker", ID, ID[:12], OURS),
            id="dockerd with the node's containerd",
        ),
        pytest.param(
            f"run/containerd/{TASKS}/k8s.io/{ID}",
            {"options": {"binary_name": ""}, "runtime": ""},
            None,
            id="runc by default",
        ),
        pytest.param(
            f"run/containerd/{TASKS}/k8s.io/{ID}",
            {"options": {"binary_name": "/usr/bin/nvidia-container-runtime"}},
            None,
            id="NVIDIA's, of a package",
        ),
        pytest.param(f"run/containerd/{TASKS}/k8s.io/{ID}", {"options": "{"}, None, id="half written"),
        pytest.param(f"run/containerd/{TASKS}/k8s.io/{ID}", {}, None, id="just begun"),
    ],
)
def test_a_container_is_known_by_the_binary_that_its_shim_recorded(
    tmp_path: Path, place: str, files: dict[str, Any], found: Container | None
) -> None:
    _bundle(tmp_path, place, **files)

    containers = list(list_shim_containers(Host.under(PurePosixPath(tmp_path)), STATES, frozenset({OURS})))

    assert containers == ([found] if found else [])


def test_a_state_directory_that_is_a_link_to_another_is_looked_at_once(tmp_path: Path) -> None:
    _bundle(tmp_path, f"run/containerd/{TASKS}/k8s.io/{ID}", runtime=str(OURS))
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    states = STATES | {PurePosixPath("/var/run/containerd"): "containerd"}

    containers = list(list_shim_containers(Host.under(PurePosixPath(tmp_path)), states, frozenset({OURS})))

    assert [each.id for each in containers] == [ID]


STATE = PurePosixPath("/var/lib/elsewhere/vfs-containers")
HANDLER = "io.kubernetes.cri-o.RuntimeHandler"
SANDBOX = "415635d5fdde8b8339d4"
APP = {
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.SandboxID": SANDBOX,
    "io.kubernetes.pod.namespace": "train",
    "io.kubernetes.pod.name": "bert-0",
}


@pytest.mark.parametrize(
    ("sandbox", "app", "runtime", "found"),
    [
        pytest.param({HANDLER: "nvidia"}, {}, OURS, {SANDBOX, ID}, id="by the handler of its sandbox"),
        pytest.param({HANDLER: "nvidia"}, {}, None, {SANDBOX, ID}, id="that ended and is not removed"),
        pytest.param({HANDLER: ""}, {}, OURS, set(), id="the default of the moment is nobody's for long"),
        pytest.param({HANDLER: "crun"}, {}, None, set(), id="another's"),
        pytest.param({HANDLER: ""}, {HANDLER: "nvidia"}, None, set(), id="what a container says of itself"),
        pytest.param({HANDLER: "runc"}, {}, OURS, {ID}, id="an annotation that its pod has overwritten"),
        pytest.param({HANDLER: "gpu"}, {}, "/usr/bin/crun", set(), id="another's, as conmon says too"),
        pytest.param({}, {}, None, set(), id="no sandbox of CRI-O's"),
    ],
)
def test_a_container_of_cri_o_is_ours_by_its_sandbox_or_by_what_its_monitor_was_started_with(
    tmp_path: Path, sandbox: dict[str, str], app: dict[str, str], runtime: object, found: set[str]
) -> None:
    own = {"io.kubernetes.cri-o.SandboxID": SANDBOX, **sandbox} if sandbox else {}
    _bundle(tmp_path, f"{STATE}/{SANDBOX}/userdata"[1:], config={"annotations": own})
    _bundle(tmp_path, f"{STATE}/{ID}/userdata"[1:], config={"annotations": APP | app})
    (tmp_path / f"{STATE}/{ID}/userdata/conmon-pidfile"[1:]).write_text("186")
    if runtime is not None:
        # As a real CRI-O 1.37 starts it (internal/oci/runtime_oci.go).
        words = ["/usr/libexec/crio/conmon", "-b", "/b", "-c", ID, "-r", str(runtime), "--full-attach"]
        (tmp_path / "proc/186").mkdir(parents=True)
        (tmp_path / "proc/186/cmdline").write_text("\0".join(words) + "\0")

    containers = list_crio_containers(
        Host.under(PurePosixPath(tmp_path)), STATE, {"nvidia": OURS}, frozenset({OURS})
    )

    assert {(each.id, each.binary) for each in containers} == {(each, OURS) for each in found}


def test_a_monitor_is_not_another_process_with_its_number(tmp_path: Path) -> None:
    own = {"io.kubernetes.cri-o.SandboxID": ID, HANDLER: "runc"}
    _bundle(tmp_path, f"{STATE}/{ID}/userdata"[1:], config={"annotations": own})
    (tmp_path / f"{STATE}/{ID}/userdata/conmon-pidfile"[1:]).write_text("186")
    (tmp_path / "proc/186").mkdir(parents=True)
    (tmp_path / "proc/186/cmdline").write_text(f"conmon\0-c\0another\0-r\0{OURS}\0")

    containers = list_crio_containers(
        Host.under(PurePosixPath(tmp_path)), STATE, {"nvidia": OURS}, frozenset({OURS})
    )

    assert list(containers) == []


def test_a_container_that_was_started_by_a_link_to_ours_is_found(tmp_path: Path) -> None:
    program = tmp_path / OURS.relative_to("/")
    program.parent.mkdir(parents=True)
    program.touch()
    other = tmp_path / "usr/local/bin/nv"
    other.parent.mkdir()
    other.symlink_to(OURS)
    _bundle(
        tmp_path,
        f"run/containerd/{TASKS}/k8s.io/{ID}",
        options={"binary_name": "/usr/local/bin/nv"},
        config={},
    )

    found = [*list_shim_containers(Host.under(PurePosixPath(tmp_path)), STATES, frozenset({OURS}))]

    assert found == [Container("containerd", ID, ID[:12], OURS)]


def test_a_link_that_a_forced_undo_has_left_makes_nothing_else_ours(tmp_path: Path) -> None:
    runc = tmp_path / "usr/bin/runc"
    program = tmp_path / OURS.relative_to("/")
    for path in (runc, program):
        path.parent.mkdir(parents=True, exist_ok=True)
    runc.touch()
    program.symlink_to("/usr/bin/runc")
    _bundle(
        tmp_path, f"run/containerd/{TASKS}/k8s.io/{ID}", options={"binary_name": "/usr/bin/runc"}, config={}
    )

    assert [*list_shim_containers(Host.under(PurePosixPath(tmp_path)), STATES, frozenset({OURS}))] == []
