"""NVIDIA's side: the operator's DaemonSet in its own words, and what a pod of NVIDIA's image leaves when it is killed."""

import json
import tomllib
from typing import Any

import tomlkit

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.cri import NODE, Container, Mount
from tests.engines.nodes import Node
from tests.engines.operator import CDI, COMMON, ENGINES, INSTALL_DIR, MOUNTS, PLACES
from tests.engines.payload import ARTIFACTS, EXECUTABLES, LIBRARIES

SPECIFICATION = "run/cdi/management.nvidia.com-gpu.yaml"
PIDFILE = "/run/nvidia/toolkit/toolkit.pid"
READY = "/run/nvidia/validations/driver-ready"
SCRIPT = "/run/operator/entrypoint.sh"
DRIVER = (
    "IS_HOST_DRIVER",
    "NVIDIA_DRIVER_ROOT",
    "DRIVER_ROOT_CTR_PATH",
    "NVIDIA_DEV_ROOT",
    "DEV_ROOT_CTR_PATH",
)
OPERATORS = (
    *("/host", INSTALL_DIR, "/run/nvidia/toolkit", "/run/nvidia/validations", "/driver-root", "/var/run/cdi"),
)
# assets/state-container-toolkit/0400_configmap.yaml of the operator; it sleeps five seconds there.
ENTRYPOINT = """\
#!/bin/sh
until [ -f /run/nvidia/validations/driver-ready ]
do
  echo "waiting for the driver validations to be ready..."
  sleep 5
done

set -o allexport
cat /run/nvidia/validations/driver-ready
. /run/nvidia/validations/driver-ready

sleep 1

exec nvidia-toolkit
"""
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
RUNTIMES = {"nvidia": "", "nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}


def prepare(node: Node, engine: str = "") -> None:
    """Make what the kubelet, the operator's validator and the driver container make ahead of the toolkit's pod."""
    there = [
        *(MOUNTS[here] for here in OPERATORS),
        *PLACES[engine or node.engine].values(),
        "/run/nvidia/driver/dev",
    ]
    for path in there:
        (node.root / path.lstrip("/").replace("var/run", "run")).mkdir(parents=True, exist_ok=True)
    node.write(READY, "".join(f"{name}={COMMON[name]}\n" for name in DRIVER))
    node.write(SCRIPT, ENTRYPOINT)
    (node.root / SCRIPT.lstrip("/")).chmod(0o700)


def pod_of_the_operator(engine: str, image: str, **more: str) -> Container:
    """Return the container of the operator's DaemonSet as it is with CDI on, which is the default."""
    places = {here: MOUNTS[here] for here in OPERATORS} | PLACES[engine]
    mounts = [Mount(here, there, here == "/host") for here, there in places.items()]
    mounts.append(Mount("/bin/entrypoint.sh", SCRIPT, read_only=True))
    said = {name: value for name, value in COMMON.items() if name not in DRIVER}
    return Container(
        command=("/bin/sh", "-c", "/bin/entrypoint.sh"),
        image=f"localhost/{image}",
        mounts=tuple(mounts),
        env=said | ENGINES[engine] | CDI | more,
        log=f"{image.rpartition(':')[2]}.log",
        pid=NODE,
        privileged=engine != "docker",  # dockerd 20.10 would give capabilities that this machine may lack
    )


def leave(node: Node) -> None:
    """Leave what NVIDIA's pod leaves when it is killed: nothing is taken back, and its pidfile stays."""
    node.write(PIDFILE, "4711\n")
    dev = "/run/nvidia/driver/dev"
    words = (f"--dev-root={dev.removesuffix('/dev')}", "--control-devices")
    node.run([f"{ARTIFACTS}/usr/bin/nvidia-ctk", "system", "create-device-nodes", *words])
    node.write(SPECIFICATION, "cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu # theirs\n")
    leave_toolkit_and_configs(node)


def leave_toolkit_and_configs(node: Node, *, default: bool = False) -> None:
    """Leave its directory and its configs alone, and let the engine read them."""
    _leave_toolkit(node)
    if node.engine == "docker":
        _leave_in_docker(node, default=default)
    else:
        _leave_in_containerd(node, default=default)
    node.restart_engine()


def _leave_toolkit(node: Node) -> None:
    """Put NVIDIA's directory there: a program and the script that calls it, libraries, links, config.toml."""
    toolkit = node.root / INSTALL_DIR.lstrip("/") / "toolkit"
    (toolkit / ".config/nvidia-container-runtime").mkdir(parents=True)
    source = node.root / ARTIFACTS.lstrip("/") / "usr"
    for name in EXECUTABLES:
        real = toolkit / (name if name == "nvidia-cdi-hook" else f"{name}.real")
        real.write_bytes((source / "bin" / name).read_bytes())
        real.chmod(0o755)
        if real.name != name:
            script = f'#! /bin/sh\nPATH={INSTALL_DIR}/toolkit:$PATH \\\n\t{INSTALL_DIR}/toolkit/{name}.real \\\n\t\t"$@"\n'
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
    _write(
        node,
        "/etc/containerd/conf.d/99-nvidia.toml",
        {"version": dump["version"], "plugins": {plugin: table}},
    )
    root = tomllib.loads(node.read(CONTAINERD))
    _write(node, CONTAINERD, {**root, "imports": ["/etc/containerd/conf.d/*.toml"]})


def _write(node: Node, path: str, tree: dict[str, Any]) -> None:
    node.write(path, tomlkit.dumps(tree, sort_keys=True))


def _binary(name: str) -> str:
    return f"{INSTALL_DIR}/toolkit/nvidia-container-runtime{RUNTIMES[name]}"
