import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.decide.facts import Container
from installer.host.containers import CRIO_CONTAINERS, STATES, TASKS, of_crio, of_shims
from installer.host.files import Host

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

    containers = list(of_shims(Host.under(PurePosixPath(tmp_path)), STATES, frozenset({OURS})))

    assert containers == ([found] if found else [])


def test_a_state_directory_that_is_a_link_to_another_is_looked_at_once(tmp_path: Path) -> None:
    _bundle(tmp_path, f"run/containerd/{TASKS}/k8s.io/{ID}", runtime=str(OURS))
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    states = STATES | {PurePosixPath("/var/run/containerd"): "containerd"}

    containers = list(of_shims(Host.under(PurePosixPath(tmp_path)), states, frozenset({OURS})))

    assert [each.id for each in containers] == [ID]


@pytest.mark.parametrize(
    ("annotations", "handlers", "name"),
    [
        pytest.param(
            {
                "io.kubernetes.cri-o.RuntimeHandler": "nvidia",
                "io.kubernetes.pod.namespace": "train",
                "io.kubernetes.pod.name": "bert-0",
            },
            {"nvidia"},
            "train/bert-0",
            id="by its handler",
        ),
        pytest.param(
            {"io.kubernetes.cri-o.RuntimeHandler": "", "io.kubernetes.pod.name": "web"},
            {"nvidia", ""},
            "-/web",
            id="by the default",
        ),
        pytest.param(
            {"io.kubernetes.cri-o.RuntimeHandler": "", "io.kubernetes.pod.name": "web"},
            {"nvidia"},
            None,
            id="a default that is not ours",
        ),
        pytest.param({"io.kubernetes.cri-o.RuntimeHandler": "kata"}, {"nvidia", ""}, None, id="another's"),
        pytest.param({}, {"nvidia", ""}, None, id="no container of CRI-O's"),
    ],
)
def test_a_container_of_cri_o_is_known_by_its_annotations(
    tmp_path: Path, annotations: dict[str, str], handlers: set[str], name: str | None
) -> None:
    _bundle(tmp_path, f"{str(CRIO_CONTAINERS)[1:]}/{ID}/userdata", config={"annotations": annotations})

    containers = list(of_crio(Host.under(PurePosixPath(tmp_path)), frozenset(handlers), OURS))

    assert [each.name for each in containers] == ([name] if name else [])
