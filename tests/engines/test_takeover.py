"""NVIDIA's toolkit pod and ours, one after the other, on a node: each serves, and takes away what is its own."""

import json
import tomllib

import pytest
import tomlkit

from tests.engines.configs import CONTAINERD, DOCKER, VERSION_2
from tests.engines.nodes import OURS, PYTHON, Node
from tests.engines.payload import ARTIFACTS, EXECUTABLES, LIBRARIES
from tests.engines.told import served, snapshot
from tests.support.entry import NVIDIAS

TOOLKIT = "/usr/local/nvidia/toolkit"
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
RUNTIMES = {"nvidia": "", "nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}
# For one installation by NVIDIA's entry point, our runtime as the default.
ONCE = {"HOST_ROOT_MOUNT": "/", "TOOLKIT_SOURCE_ROOT": ARTIFACTS, "NO_DAEMON": "true"}


def _leave_toolkit(node: Node) -> None:
    """Put NVIDIA's directory there: a program and the script that calls it, libraries, links, config.toml."""
    toolkit = node.path(TOOLKIT)
    (toolkit / ".config/nvidia-container-runtime").mkdir(parents=True)
    source = node.path(ARTIFACTS) / "usr"
    for name in EXECUTABLES:
        real = toolkit / (name if name == "nvidia-cdi-hook" else f"{name}.real")
        real.write_bytes((source / "bin" / name).read_bytes())
        real.chmod(0o755)
        if real.name != name:
            script = f'#! /bin/sh\nPATH={TOOLKIT}:$PATH \\\n\t{TOOLKIT}/{name}.real \\\n\t\t"$@"\n'
            (toolkit / name).write_text(script)
            (toolkit / name).chmod(0o755)
    for name in LIBRARIES:
        (file,) = (source / "lib/x86_64-linux-gnu").glob(f"{name}.*.*.*")
        (toolkit / file.name).write_bytes(file.read_bytes())
        (toolkit / f"{name}.1").symlink_to(file.name)
    (toolkit / "nvidia-container-toolkit").symlink_to("nvidia-container-runtime-hook")
    (toolkit / ".config/nvidia-container-runtime/config.toml").write_text('[nvidia-ctk]\n  path = "x"\n')


def _leave_in_docker(node: Node, *, default: bool) -> None:
    said = json.loads(node.read(DOCKER)) | ({"default-runtime": "nvidia"} if default else {})
    said["runtimes"] = {name: {"args": [], "path": _binary(name)} for name in RUNTIMES}
    said["features"] = {"cdi": True}
    node.write(DOCKER, json.dumps(said, indent=4, sort_keys=True))


def _leave_in_containerd(node: Node, *, default: bool) -> None:
    """Copy the engine's whole CRI table into the drop-in, the three runtimes with it, and import all beside it."""
    dump = tomllib.loads(node.run(["containerd", "config", "dump"]).stdout)
    plugin = CRI[dump["version"]]
    table = dump["plugins"][plugin]
    runtimes = table["containerd"]["runtimes"]
    for name in RUNTIMES:
        donor = json.loads(json.dumps(runtimes["runc"]))
        runtimes[name] = donor | {"options": donor.get("options", {}) | {"BinaryName": _binary(name)}}
    table["enable_cdi"] = True
    table["containerd"]["default_runtime_name"] = "nvidia" if default else "runc"
    root = tomllib.loads(node.read(CONTAINERD)) | {"imports": ["/etc/containerd/conf.d/*.toml"]}
    drop_in = {"version": dump["version"], "plugins": {plugin: table}}
    node.write("/etc/containerd/conf.d/99-nvidia.toml", tomlkit.dumps(drop_in, sort_keys=True))
    node.write(CONTAINERD, tomlkit.dumps(root, sort_keys=True))


def _binary(name: str) -> str:
    return f"{TOOLKIT}/nvidia-container-runtime{RUNTIMES[name]}"


@pytest.mark.sampled(16)
@pytest.mark.any_version
@pytest.mark.parametrize("default", [True, False], ids=["as the default already", "not as the default"])
def test_what_nvidias_killed_pod_left_is_adopted_and_restored(node: Node, *, default: bool) -> None:
    if node.engine == "containerd":
        # NVIDIA's tool copies what the engine dumps: schema 3 on 2.x, also beside a root file of schema 2.
        node.write(CONTAINERD, VERSION_2)
        node.restart_engine()
    _leave_toolkit(node)
    (_leave_in_docker if node.engine == "docker" else _leave_in_containerd)(node, default=default)
    node.restart_engine()
    files, before, variables = snapshot(node), served(node), ONCE | {"RUNTIME": node.engine}
    assert before[0] >= OURS

    node.run([PYTHON, *NVIDIAS], env=variables)
    again = node.run([PYTHON, *NVIDIAS], env=variables)

    assert "toolkit installed" not in again.stderr
    assert served(node) == (before[0], "nvidia"), "the same handlers, served by our toolkit"
    config = node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml")
    assert "nvidia-ctk" in config, "ours"
    node.installer("uninstall", check=True)
    assert (snapshot(node), served(node)) == (files, before)
