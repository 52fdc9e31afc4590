"""The golden texts are read by the engines themselves, not by our own parsers alone."""

import shutil
import tomllib

import pytest

from tests.change.golden import Case, cases
from tests.engines.nodes import Node

CONFIG = "/etc/containerd/config.toml"
BINARY = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
# What 2.3 writes and 2.1 does not read; a number that no dockerd reads; a user that the node cannot add.
TOO_NEW = {"containerd-default-of-23-schema-4-imports-ours-already"}
NOT_READ = {"generator-floats-that-no-double-holds", "userns-remap-three-space-indent"}


def _accepted(engine: str) -> list[Case]:
    return [case for case in cases(engine) if not case.said.get("refused")]


def _placed(node: Node, case: Case) -> None:
    shutil.rmtree(node.root / "etc/containerd", ignore_errors=True)
    for folder in ("before", "after"):
        source = case.path / folder
        if source.exists():
            shutil.copytree(source, node.root, dirs_exist_ok=True)


def _handlers(dump: str) -> dict[str, str]:
    plugins = tomllib.loads(dump)["plugins"]
    found: dict[str, str] = {}
    for plugin in ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "cri"):
        runtimes = plugins.get(plugin, {}).get("containerd", {}).get("runtimes") or {}
        for name, runtime in runtimes.items():
            options = {key.lower(): value for key, value in (runtime.get("options") or {}).items()}
            found[name] = options.get("binaryname", "")
    return found


@pytest.mark.sampled(16)
def test_containerd_reads_our_runtime_out_of_each_golden_config(containerd_node: Node) -> None:
    major_minor = containerd_node.containerd_version.rsplit(".", 1)[0]
    mine = [
        case
        for case in _accepted("containerd")
        if str(case.said.get("engine_version", "1.6.20")).rsplit(".", 1)[0] == major_minor
        and case.path.name not in TOO_NEW
    ]

    for case in mine:
        _placed(containerd_node, case)
        done = containerd_node.run(["containerd", "--config", CONFIG, "config", "dump"], check=False)

        assert done.returncode == 0, f"{case.path.name}: {done.stderr}"
        name = case.said.get("runtime_name", "nvidia")
        assert _handlers(done.stdout).get(name) == BINARY, case.path.name
    assert mine


@pytest.mark.sampled(16)
def test_dockerd_accepts_each_golden_config_and_the_intermediate_text_of_its_undo(docker_node: Node) -> None:
    if str(docker_node.docker_version).startswith("20."):
        unknown = docker_node.run(["dockerd", "--validate"], check=False)
        assert "unknown flag: --validate" in unknown.stderr  # the one that cannot be asked
        return

    place = docker_node.root / "run/candidates"
    place.mkdir()
    for case in _accepted("docker"):
        for folder in ("after", "undoing"):
            source = case.path / folder / "etc/docker/daemon.json"
            if source.exists() and case.path.name not in NOT_READ:
                shutil.copyfile(source, place / f"{case.path.name}-{folder}.json")
    each = 'for file in *; do dockerd --validate --config-file "$file" >/dev/null || echo "$file"; done'
    done = docker_node.run(["sh", "-c", f"cd /run/candidates && {each}"])

    assert done.stdout == "", done.stderr
