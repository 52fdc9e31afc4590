"""NVIDIA's toolkit pod and ours, one after the other, on a node: each serves, and takes away what is its own."""

import json
import tomllib

import pytest
import tomlkit

from tests.engines.configs import CONTAINERD, DOCKER, VERSION_2
from tests.engines.images import IMAGE
from tests.engines.live import start
from tests.engines.nodes import PYTHON, Node
from tests.engines.operator import CDI
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import served
from tests.support.entry import NVIDIAS
from tests.support.waiting import until

TOOLKIT = "/usr/local/nvidia/toolkit"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
MODES = {"nvidia": "", "nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}
BINARIES = {name: f"{TOOLKIT}/nvidia-container-runtime{mode}" for name, mode in MODES.items()}


def leave_what_nvidias_pod_leaves(node: Node, *, default: bool, restart: bool = True) -> None:
    """Leave what nvidia-ctk-installer v1.20.0 leaves when it is killed, and let the engine read it.

    Its directory; daemon.json with the runtimes; for containerd the root file with an import of the whole
    directory, and a drop-in with all that `containerd config dump` says of CRI, its runtimes besides.
    """
    node.run(["mkdir", "-p", f"{TOOLKIT}/.config/nvidia-container-runtime"])
    node.run(["sh", "-c", f"cp -r {ARTIFACTS}/usr/bin/. {TOOLKIT}/"])
    node.write(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml", "[nvidia-container-runtime]\n")
    if node.engine == "docker":
        said = json.loads(node.read(DOCKER))
        said["runtimes"] = {name: {"args": [], "path": path} for name, path in BINARIES.items()}
        said |= {"default-runtime": "nvidia"} if default else {}
        node.write(DOCKER, json.dumps(said, indent=4, sort_keys=True))
    else:
        dump = tomllib.loads(node.run(["containerd", "config", "dump"]).stdout)
        name = next(name for name in dump["plugins"] if name.endswith(("v1.cri", "cri.v1.runtime")))
        cri = dump["plugins"][name]["containerd"]
        for runtime, path in BINARIES.items():
            runc = cri["runtimes"]["runc"]
            cri["runtimes"][runtime] = runc | {"options": runc["options"] | {"BinaryName": path}}
        cri["default_runtime_name"] = "nvidia" if default else cri["default_runtime_name"]
        copy = {"version": dump["version"], "plugins": {name: dump["plugins"][name]}}
        node.write(DROP_IN, tomlkit.dumps(copy))
        node.write(CONTAINERD, f'imports = ["/etc/containerd/conf.d/*.toml"]\n{node.read(CONTAINERD)}')
    if restart:
        node.restart(f"{node.engine}.service")
    else:
        node.run(["systemctl", "reload", f"{node.engine}.service"])
    if node.engine == "containerd":
        node.cri.wait()


def variables(node: Node) -> dict[str, str]:
    """Return the variables for one installation by NVIDIA's entry point, our runtime as the default."""
    return {
        "RUNTIME": node.engine,
        "HOST_ROOT_MOUNT": "/",
        "TOOLKIT_SOURCE_ROOT": ARTIFACTS,
        "NO_DAEMON": "true",
    }


@pytest.mark.any_version
@pytest.mark.parametrize("default", [True, False], ids=["as the default already", "not as the default"])
def test_what_nvidias_killed_pod_left_is_adopted_and_restored(node: Node, *, default: bool) -> None:
    leave_what_nvidias_pod_leaves(node, default=default)
    files, before = snapshot(node), served(node)
    assert BINARIES.keys() <= before[0]
    environment = variables(node)

    done = node.run([PYTHON, *NVIDIAS], env=environment, check=False)
    again = node.run([PYTHON, *NVIDIAS], env=environment, check=False)
    during = served(node)
    config = node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml")
    undone = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert again.returncode == 0, again.stderr
    assert "toolkit installed" not in again.stderr
    assert during == (before[0], "nvidia"), "the same handlers, served by our toolkit"
    assert "nvidia-ctk" in config, "ours"
    assert undone.returncode == 0, undone.stderr
    assert served(node) == before
    assert snapshot(node) == files


SPECIFICATION = "/run/cdi/management.nvidia.com-gpu.yaml"
NODES = "/run/nvidia/driver/dev"


@pytest.mark.any_version
def test_what_nvidias_image_serves_after_an_incomplete_undo_of_ours_stays(node: Node) -> None:
    node.run(["mkdir", "-p", NODES])
    node.run([PYTHON, *NVIDIAS], env=variables(node) | CDI)
    live = start(node)
    kept = node.installer("uninstall", "--in-use", "keep")
    # NVIDIA's removes what has its directory's name, and writes the same specification again.
    node.run(["rm", TOOLKIT])
    leave_what_nvidias_pod_leaves(node, default=False, restart=node.engine != "docker")
    until(lambda: BINARIES.keys() <= served(node)[0], lambda: node.journal(node.engine))
    node.run(
        ["sh", "-c", f"cp {SPECIFICATION} {SPECIFICATION}.new && mv {SPECIFICATION}.new {SPECIFICATION}"]
    )
    before, specification = served(node), node.read(SPECIFICATION)
    toolkit, pid = snapshot(node), node.pid_of(f"{node.engine}.service")
    told = node.installer("status")

    undone = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert BINARIES.keys() <= before[0]
    assert "not ours: another installer has put its toolkit there" in told.stdout
    assert undone.returncode == 0, undone.stderr
    assert "left nvidia, nvidia-cdi, nvidia-legacy in /etc/" in undone.stderr
    assert served(node) == before
    assert node.pid_of(f"{node.engine}.service") == pid
    assert node.read(SPECIFICATION) == specification
    assert (node.root / NODES[1:] / "nvidiactl").exists(), "which that names"
    left = snapshot(node)
    gone = {name for name in toolkit if name not in left}
    assert {name for name in toolkit if name in left and left[name] != toolkit[name]} <= {"/usr/local/nvidia"}
    assert all(".toolkit-installer" in name for name in gone), gone
    assert not (node.root / "usr/local/nvidia/.toolkit-installer").exists()
    assert live.exec() == "alive\n"
    live.stop()
    live.remove()
    again = start(node, name="again")
    assert again.exec() == "alive\n"
    again.stop()
    again.remove()


def test_a_drop_in_of_nvidias_that_is_newer_than_the_root_file_is_taken_over(containerd_node: Node) -> None:
    node = containerd_node
    # NVIDIA's tool copies what the engine dumps: schema 3 on 2.x, also beside a root file of schema 2.
    node.write(CONTAINERD, VERSION_2)
    node.restart("containerd.service")
    node.cri.wait()
    leave_what_nvidias_pod_leaves(node, default=False)
    files, before = snapshot(node), served(node)
    assert BINARIES.keys() <= before[0]

    done = node.run([PYTHON, *NVIDIAS], env=variables(node), check=False)
    during = served(node)
    undone = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert during == (before[0], "nvidia")
    assert undone.returncode == 0, undone.stderr
    assert served(node) == before
    assert snapshot(node) == files


# As container-config's containerd command of 2021 left it with --use-legacy-config (a file of schema 1).
OLD = f"""version = 1
oom_score = 0

[plugins.cri]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  [plugins.cri.containerd.default_runtime]
    runtime_type = "io.containerd.runc.v2"
    runtime_root = ""
    runtime_engine = ""
    privileged_without_host_devices = false
    [plugins.cri.containerd.default_runtime.options]
      BinaryName = "{BINARIES["nvidia"]}"
      Runtime = "{BINARIES["nvidia"]}"
"""


def test_the_default_runtime_table_of_schema_1_gives_way_and_comes_back(containerd_node: Node) -> None:
    node = containerd_node
    # containerd 2.x ignores a file of schema 1: there it is refused, and nothing is changed.
    code, default = (0, "nvidia") if node.containerd_version.startswith("1.") else (1, "runc")
    leave_what_nvidias_pod_leaves(node, default=False)
    node.write(CONTAINERD, OLD)
    node.restart("containerd.service")
    node.cri.wait()
    files, before = snapshot(node), served(node)

    done = node.run([PYTHON, *NVIDIAS], env=variables(node), check=False)
    during = served(node)
    undone = node.installer("uninstall")

    assert (done.returncode, during[1]) == (code, default), done.stderr
    assert undone.returncode == 0, undone.stderr
    assert served(node) == before
    assert snapshot(node) == files
