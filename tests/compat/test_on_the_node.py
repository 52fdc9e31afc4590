"""What each flag comes to on the node: config.toml key for key, the engine's config, what is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.nvidia import TOOLKIT, V2, V3, Nvidia
from tests.support.entry import NVIDIAS

KATA = "io.containerd.kata.v2"
PROJECT = Path(__file__).parents[2]
CONFIG_TOML = f"{TOOLKIT[1:]}/.config/nvidia-container-runtime/config.toml"


def _at(tree: Any, key: str) -> Any:
    for part in key.split("/"):
        tree = tree[part]
    return tree


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("NVIDIA_DRIVER_ROOT", "/d", "nvidia-container-cli/root", "/d"),
        ("NVIDIA_DRIVER_ROOT", "/d", "nvidia-container-cli/ldconfig", "@/d/sbin/ldconfig"),
        ("NVIDIA_CONTAINER_CLI_DEBUG", "/l", "nvidia-container-cli/debug", "/l"),
        ("NVIDIA_CONTAINER_CLI_DEBUG", "", "nvidia-container-cli/debug", ""),
        ("NVIDIA_CONTAINER_RUNTIME_DEBUG", "/l", "nvidia-container-runtime/debug", "/l"),
        ("NVIDIA_CONTAINER_RUNTIME_DEBUG", "", "nvidia-container-runtime/debug", "/dev/null"),
        ("NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL", "debug", "nvidia-container-runtime/log-level", "debug"),
        ("NVIDIA_CONTAINER_RUNTIME_MODE", "cdi", "nvidia-container-runtime/mode", "cdi"),
        (
            "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND",
            "management.nvidia.com/gpu",
            "nvidia-container-runtime/modes/cdi/default-kind",
            "management.nvidia.com/gpu",
        ),
        (
            "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES",
            "a/, b/",
            "nvidia-container-runtime/modes/cdi/annotation-prefixes",
            ["a/", "b/"],
        ),
        (
            "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES",
            "",
            "nvidia-container-runtime/modes/cdi/annotation-prefixes",
            [],
        ),
        (
            "NVIDIA_CONTAINER_RUNTIME_RUNTIMES",
            "crun,/x/runc",
            "nvidia-container-runtime/runtimes",
            ["crun", "/x/runc"],
        ),
        (
            "NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION",
            "false",
            "nvidia-container-runtime-hook/skip-mode-detection",
            False,
        ),
        (
            "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED",
            "0",
            "accept-nvidia-visible-devices-envvar-when-unprivileged",
            False,
        ),
        (
            "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS",
            "T",
            "accept-nvidia-visible-devices-as-volume-mounts",
            True,
        ),
        ("NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES", "a,b.c", "features", {"a": True, "b": {"c": True}}),
        ("ROOT", "/opt/n", "nvidia-ctk/path", "/opt/n/toolkit/nvidia-ctk"),
    ],
)
def test_a_variable_arrives_in_config_toml(
    docker: Nvidia, variable: str, text: str, key: str, value: object
) -> None:
    import tomllib

    assert docker.install(**{variable: text}) == 0

    (path,) = docker.root.glob(
        "*/**/.toolkit-installer/versions/*/.config/nvidia-container-runtime/config.toml"
    )
    assert _at(tomllib.loads(path.read_text()), key) == value


def test_the_files_alone_are_installed_without_an_engine(docker: Nvidia) -> None:
    before = docker.tree()

    assert docker.install(NO_RUNTIME_CONFIG="true") == 0

    assert not docker.config.exists()
    assert docker.toolkit_config()["nvidia-container-runtime"]["runtimes"] == ["runc", "crun"]
    assert docker.uninstall() == 0
    assert docker.tree() == before


def test_with_nri_and_no_daemon_the_files_alone_are_installed(docker: Nvidia) -> None:
    nri = {"ENABLE_NRI_PLUGIN": "true", "NRI_NAMESPACE": "gpu-operator"}

    assert docker.install(**nri) == 0
    assert not docker.config.exists()
    assert (docker.root / CONFIG_TOML).exists()


def test_annotations_and_a_runtime_type_arrive_in_containerds_runtimes(containerd: Nvidia) -> None:
    containerd.config.write_text("version = 3\n")

    code = containerd.install(
        NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES="cdi.k8s.io/,nvidia.cdi.k8s.io/",
        CONTAINERD_RUNTIME_TYPE="io.containerd.runc.v2",
        RUNTIME_ENABLE_CDI="true",
    )

    assert code == 0
    ours = [runtime for name, runtime in containerd.runtimes().items() if name != "runc"]
    for runtime in ours:
        assert runtime["container_annotations"] == ["cdi.k8s.io/*", "nvidia.cdi.k8s.io/*"]
        assert runtime["runtime_type"] == "io.containerd.runc.v2"
    assert "enable_cdi = true" in containerd.drop_in.read_text()


@pytest.mark.parametrize("config", ["version = 3\n", "version = 2\n", "root = '/r'\n"])
def test_a_runtime_type_that_is_told_is_that_of_runtimes_that_inherit_none(
    containerd: Nvidia, config: str
) -> None:
    containerd.config.write_text(config)

    assert containerd.install(f"--runtime-type={KATA}") == 0

    types = {name: runtime["runtime_type"] for name, runtime in containerd.runtimes().items()}
    assert {types[name] for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")} == {KATA}


def test_a_runtime_type_that_is_inherited_wins(containerd: Nvidia) -> None:
    runc = "io.containerd.runc.v2"
    containerd.config.write_text(f'version = 2\n[{V2}.runtimes.runc]\nruntime_type = "{runc}"\n')

    assert containerd.install(f"--runtime-type={KATA}") == 0

    assert {runtime["runtime_type"] for runtime in containerd.runtimes().values()} == {runc}


def test_annotations_come_before_those_that_are_inherited(containerd: Nvidia) -> None:
    containerd.config.write_text(
        f'version = 2\n[{V2}.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\ncontainer_annotations = ["mine/*"]\n'
    )

    assert containerd.install(NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES="a/") == 0

    assert containerd.runtimes()["nvidia"]["container_annotations"] == ["a/*", "mine/*"]


def test_a_drop_in_that_the_host_has_elsewhere_is_imported_from_there(tmp_path: Path) -> None:
    node = Nvidia(tmp_path, "containerd")
    node.config.write_text("version = 3\n")

    assert node.install() == 0

    imports = [line for line in node.config.read_text().splitlines() if "imports" in line]
    assert imports == ['imports = ["/etc/containerd/conf.d/99-nvidia*.toml"]']
    assert f"[{V3}".replace("'", '"') in node.drop_in.read_text()


@pytest.mark.parametrize("default", ["true", "false"])
@pytest.mark.parametrize("name", ["nvidia", "gpu", "nvidia-cdi", ""])
def test_names_and_default_are_as_nvidia_has_them(docker: Nvidia, name: str, default: str) -> None:
    assert docker.install(NVIDIA_RUNTIME_NAME=name, NVIDIA_RUNTIME_SET_AS_DEFAULT=default) == 0

    said = json.loads(docker.config.read_text())
    names = {"nvidia" if name in {"", "nvidia-cdi"} else name, "nvidia-cdi", "nvidia-legacy"}
    assert said["runtimes"].keys() == names
    assert said.get("default-runtime") == ((name or "nvidia") if default == "true" else None)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RUNTIME": "podman"}, "configure the runtime 'podman'"),
        ({"ROOT": ""}, "install without a directory"),
        ({"ROOT": "a/b"}, "use the path a/b"),
        ({"PID_FILE": "/run/x.pid"}, "use the pidfile '/run/x.pid'"),
        ({"TOOLKIT_PACKAGE_TYPE": "apk"}, "use 'apk' as --toolkit-package-type"),
        ({"RUNTIME_RESTART_MODE": "reload"}, "use 'reload' as --restart-mode"),
        ({"CRIO_CONFIG_MODE": "x"}, "use 'x' as --config-mode"),
        ({"RUNTIME_CONFIG_SOURCE": "file,url=x"}, "use 'url=x' as --config-source"),
        ({"CREATE_DEVICE_NODES": "none,bad"}, "use 'bad' as --create-device-nodes"),
        ({"CDI_KIND": "nvidia"}, "use 'nvidia' as --cdi-kind"),
        ({"CDI_KIND": "-x/gpu"}, "use '-x/gpu' as --cdi-kind"),
        ({"CDI_KIND": "a/gpu"}, "use 'a/gpu' as --cdi-kind"),  # engines that watch CDI die of it
        ({"CDI_KIND": "nvidia.com/g"}, "use 'nvidia.com/g' as --cdi-kind"),
        ({"NRI_PLUGIN_INDEX": "100"}, "use 100 as --nri-plugin-index"),
        ({"ENABLE_NRI_PLUGIN": "1"}, "enable the NRI plugin without a namespace"),
        ({"ENABLE_NRI_PLUGIN": "1", "NRI_NAMESPACE": "A b"}, "allow 'A b=management.nvidia.com/gpu'"),
        ({"RUNTIME_CONFIG_OVERRIDE": "["}, "read --runtime-config-override"),
        ({"RUNTIME_CONFIG": "daemon.json"}, "use the path daemon.json"),
    ],
    ids=lambda case: ",".join(case) if isinstance(case, dict) else "",
)
def test_a_value_that_makes_no_sense_changes_nothing(
    docker: Nvidia, variables: dict[str, str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = docker.tree()

    assert docker.install(**{"NO_DAEMON": "false"} | variables) == 1

    assert words in json.loads(capfd.readouterr().err.splitlines()[-1])["problem"]
    assert docker.tree() == before


@pytest.mark.parametrize(
    ("engine", "said", "told"),
    [
        ("docker", "signal", ""),
        ("docker", "systemd", "Docker gets SIGHUP: a restart by its unit would stop its containers"),
        (
            "containerd",
            "signal",
            "containerd is restarted by its unit: a signal does not make it read its config",
        ),
        ("containerd", "systemd", ""),
        ("crio", "Signal", "CRI-O is restarted by its unit: a signal does not make it read its config"),
    ],
)
def test_a_restart_mode_that_does_not_apply_is_answered_by_what_is_done_instead(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], engine: str, said: str, told: str
) -> None:
    Nvidia(tmp_path, engine).install(RUNTIME_RESTART_MODE=said)

    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["note"] for line in lines if line["level"] == "warning"] == [told] * bool(told)


def test_the_program_waits_says_so_and_undoes_everything(docker: Nvidia) -> None:
    docker.config.write_text('{"log-driver": "local"}\n')
    before = docker.tree()
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": str(PROJECT),
        "HOST_ROOT_MOUNT": str(docker.root),
        "TOOLKIT_SOURCE_ROOT": str(docker.source),
        "RUNTIME_RESTART_MODE": "none",
        "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
    }
    command = [sys.executable, *NVIDIAS]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            assert any("Waiting for signal" in line for line in child.stderr)
            assert (docker.root / "run/nvidia/toolkit/toolkit.pid").read_text() == f"{child.pid}\n"
            second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            child.send_signal(signal.SIGTERM)
            assert child.wait(30) == 0
        finally:
            child.kill()

    assert second.returncode == 1
    assert f"pid {child.pid}" in second.stderr
    assert docker.tree() == before
