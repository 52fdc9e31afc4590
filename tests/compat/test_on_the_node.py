"""What each flag comes to on the node: config.toml key for key, the engine's config, what is refused."""

import json
from functools import reduce

import pytest

from tests.compat.nvidia import TOOLKIT, V2, Nvidia
from tests.support.waiting import until

KATA, RUNC = "io.containerd.kata.v2", "io.containerd.runc.v2"
NRI = {"ENABLE_NRI_PLUGIN": "true", "NRI_NAMESPACE": "gpu-operator"}
RUNTIME, ACCEPT = "NVIDIA_CONTAINER_RUNTIME", "ACCEPT_NVIDIA_VISIBLE_DEVICES"
PREFIXES = f"{RUNTIME}_MODES_CDI_ANNOTATION_PREFIXES"
# A variable, the text that it has, and what the text becomes at a key of config.toml.
SAID = [
    ("NVIDIA_DRIVER_ROOT", "/d", "nvidia-container-cli/root", "/d"),
    ("NVIDIA_DRIVER_ROOT", "/d", "nvidia-container-cli/ldconfig", "@/d/sbin/ldconfig"),
    ("NVIDIA_CONTAINER_CLI_DEBUG", "/l", "nvidia-container-cli/debug", "/l"),
    (f"{RUNTIME}_DEBUG", "/l", "nvidia-container-runtime/debug", "/l"),
    (f"{RUNTIME}_LOG_LEVEL", "debug", "nvidia-container-runtime/log-level", "debug"),
    (f"{RUNTIME}_MODE", "cdi", "nvidia-container-runtime/mode", "cdi"),
    (
        f"{RUNTIME}_MODES_CDI_DEFAULT_KIND",
        "a.b/c",
        "nvidia-container-runtime/modes/cdi/default-kind",
        "a.b/c",
    ),
    (PREFIXES, "a/, b/", "nvidia-container-runtime/modes/cdi/annotation-prefixes", ["a/", "b/"]),
    (f"{RUNTIME}_RUNTIMES", "crun,/x/runc", "nvidia-container-runtime/runtimes", ["crun", "/x/runc"]),
    (
        f"{RUNTIME}_HOOK_SKIP_MODE_DETECTION",
        "false",
        "nvidia-container-runtime-hook/skip-mode-detection",
        False,
    ),
    (
        f"{ACCEPT}_ENVVAR_WHEN_UNPRIVILEGED",
        "0",
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
        False,
    ),
    (f"{ACCEPT}_AS_VOLUME_MOUNTS", "T", "accept-nvidia-visible-devices-as-volume-mounts", True),
    ("NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES", "a,b.c", "features", {"a": True, "b": {"c": True}}),
    ("ROOT", "/usr/local/nvidia", "nvidia-ctk/path", f"{TOOLKIT}/nvidia-ctk"),
]
EMPTY = [
    ("NVIDIA_CONTAINER_CLI_DEBUG", "", "nvidia-container-cli/debug", ""),
    (f"{RUNTIME}_DEBUG", "", "nvidia-container-runtime/debug", "/dev/null"),
    (PREFIXES, "", "nvidia-container-runtime/modes/cdi/annotation-prefixes", []),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [SAID, EMPTY], ids=["said", "empty"])
def test_each_variable_arrives_in_config_toml(
    docker: Nvidia, rows: list[tuple[str, str, str, object]]
) -> None:
    assert docker.install(**{variable: text for variable, text, _, _ in rows}) == 0

    config = docker.toolkit_config()
    found = {key: reduce(dict.__getitem__, key.split("/"), config) for _, _, key, _ in rows}
    assert found == {key: value for _, _, key, value in rows}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variables", [{"NO_RUNTIME_CONFIG": "true"}, NRI], ids=["asked for", "NRI"])
def test_the_files_alone_are_installed_without_an_engine(docker: Nvidia, variables: dict[str, str]) -> None:
    with docker.installed(**variables):
        assert not docker.config.exists()
        assert docker.low_level() == ["runc", "crun"]


def test_a_run_for_the_files_alone_is_ready_for_no_engine_and_leaves_nothing_beside_its_pidfile(
    docker: Nvidia,
) -> None:
    beside = docker.root / "run/nvidia/toolkit"
    files = {"toolkit.pid", "toolkit.pid.state", "toolkit.pid.options", "ready"}
    before = docker.tree()

    with docker.running(NO_RUNTIME_CONFIG="true", TOOLKIT_PID_FILE=str(beside / "toolkit.pid")) as run:
        until(lambda: {path.name for path in beside.glob("*")} == files, lambda: str(run.poll()))
        ready = json.loads((beside / "ready").read_text())

    assert run.returncode == 0
    assert ready["engines"] == []
    assert docker.tree() == before


def test_annotations_and_cdi_arrive_in_containerds_runtimes_before_what_is_inherited(
    containerd: Nvidia,
) -> None:
    containerd.config.write_text(
        f'version = 2\n[{V2}.runtimes.runc]\nruntime_type = "{RUNC}"\ncontainer_annotations = ["mine/*"]\n'
    )

    assert containerd.install(RUNTIME_ENABLE_CDI="true", **{PREFIXES: "a/,b.k8s.io/"}) == 0

    annotations = {tuple(each["container_annotations"]) for each in containerd.runtimes().values()}
    assert annotations == {("a/*", "b.k8s.io/*", "mine/*"), ("mine/*",)}
    assert "enable_cdi = true" in containerd.config.read_text()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ("version = 3\n", KATA),
        ("version = 2\n", KATA),
        ("root = '/r'\n", KATA),
        (f'version = 2\n[{V2}.runtimes.runc]\nruntime_type = "{RUNC}"\n', RUNC),
    ],
    ids=["schema 3", "schema 2", "no schema", "inherited"],
)
def test_a_runtime_type_that_is_told_is_that_of_runtimes_that_inherit_none(
    containerd: Nvidia, config: str, kind: str
) -> None:
    containerd.config.write_text(config)

    assert containerd.install(f"--runtime-type={KATA}") == 0

    types = {name: runtime["runtime_type"] for name, runtime in containerd.runtimes().items()}
    assert {types[name] for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")} == {kind}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("default", ["true", "false"])
@pytest.mark.parametrize("name", ["nvidia", "gpu", "nvidia-cdi", ""])
def test_names_and_default_are_as_nvidia_has_them(docker: Nvidia, name: str, default: str) -> None:
    assert docker.install(NVIDIA_RUNTIME_NAME=name, NVIDIA_RUNTIME_SET_AS_DEFAULT=default) == 0

    names = {"nvidia" if name in {"", "nvidia-cdi"} else name, "nvidia-cdi", "nvidia-legacy"}
    assert docker.runtimes().keys() == names
    assert docker.default() == ((name or "nvidia") if default == "true" else None)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RUNTIME": "podman"}, "configure the runtime 'podman'"),
        ({"ROOT": ""}, "install without a directory"),
        ({"ROOT": "a/b"}, "use the path a/b"),
        ({"ROOT": "/usr/local/../nvidia"}, "use the path /usr/local/../nvidia"),
        ({"PID_FILE": "/run/x.pid"}, "use the pidfile '/run/x.pid'"),
        ({"TOOLKIT_PACKAGE_TYPE": "apk"}, "use 'apk' as --toolkit-package-type"),
        ({"RUNTIME_RESTART_MODE": "reload"}, "use 'reload' as --restart-mode"),
        ({"NVIDIA_RUNTIME_NAME": "runc"}, "runc"),
        ({"CRIO_CONFIG_MODE": "x"}, "use 'x' as --config-mode"),
        ({"RUNTIME_CONFIG_SOURCE": "file,url=x"}, "use 'url=x' as --config-source"),
        ({"CREATE_DEVICE_NODES": "none,bad"}, "use 'bad' as --create-device-nodes"),
        ({"CDI_KIND": "-x/gpu"}, "use '-x/gpu' as --cdi-kind"),
        ({"CDI_KIND": "a/gpu"}, "use 'a/gpu' as --cdi-kind"),  # engines that watch CDI die of it
        ({"NRI_PLUGIN_INDEX": "100"}, "use 100 as --nri-plugin-index"),
        ({"ENABLE_NRI_PLUGIN": "1"}, "enable the NRI plugin without a namespace"),
        ({"ENABLE_NRI_PLUGIN": "1", "NRI_NAMESPACE": "A b"}, "allow 'A b=management.nvidia.com/gpu'"),
        ({"RUNTIME_CONFIG_OVERRIDE": "["}, "read --runtime-config-override"),
        ({"RUNTIME_CONFIG_OVERRIDE": '"x"'}, "--runtime-config-override"),
        ({"RUNTIME_CONFIG_OVERRIDE": '{"a": null}'}, "--runtime-config-override"),
        ({"RUNTIME_CONFIG": "daemon.json"}, "use the path daemon.json"),
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_changes_nothing(
    docker: Nvidia, variables: dict[str, str], words: str
) -> None:
    assert words in docker.refused(**{"NO_DAEMON": "false"} | variables)
