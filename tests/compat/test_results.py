"""What the variables of NVIDIA's tool come to as options of ours, and what is refused."""

from pathlib import PurePosixPath

import pytest

from installer.cli.nvidia import options_from
from installer.cli.nvidia_flags import read
from installer.model.options import Cdi, Options, RestartMode


def _options(**variables: str) -> Options:
    return options_from(read([], {"HOST_ROOT_MOUNT": "/nowhere", **variables}))


def test_the_operators_places_are_the_hosts_where_no_root_is_mounted() -> None:
    options = _options(
        RUNTIME="containerd",
        RUNTIME_CONFIG="/runtime/config-dir/config.toml",
        RUNTIME_DROP_IN_CONFIG="/runtime/config-dir.d/99-nvidia.toml",
        RUNTIME_DROP_IN_CONFIG_HOST_PATH="/etc/k/conf.d/99-nvidia.toml",
        RUNTIME_SOCKET="/runtime/sock-dir/containerd.sock",
    )

    places = options.places["containerd"]
    assert str(places.config) == "/etc/containerd/config.toml"
    assert str(places.drop_in) == "/etc/k/conf.d/99-nvidia.toml"
    assert str(places.socket) == "/run/containerd/containerd.sock"
    assert {str(host): str(here) for host, here in options.mounts} == {
        "/etc/containerd": "/runtime/config-dir",
        "/etc/k/conf.d": "/runtime/config-dir.d",
        "/run/containerd": "/runtime/sock-dir",
    }


def test_with_nri_the_namespaces_get_the_kind_of_the_specification_and_nothing_else() -> None:
    more = {"NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES": "dra, gpu-operator", "NRI_PLUGIN_INDEX": "7"}
    switched_on = {"ENABLE_NRI_PLUGIN": "true", "NRI_NAMESPACE": "gpu-operator", **more}
    socket = {"NRI_SOCKET": "/runtime/nri-sock-dir/nri.sock"}

    options = _options(RUNTIME="containerd", **switched_on, **socket)

    assert options.engines == ()
    assert options.serves_nri
    assert str(options.nri.socket) == "/var/run/nri/nri.sock"
    assert options.nri.identity.order == "07"
    assert [*map(str, options.nri.allowed)] == [
        "gpu-operator=management.nvidia.com/gpu",
        "dra=management.nvidia.com/gpu",
    ]
    assert not _options(NO_DAEMON="true", **switched_on).serves_nri


@pytest.mark.parametrize(
    ("engine", "said", "mode"),
    [
        ("docker", "signal", RestartMode.AUTO),
        ("containerd", "signal", RestartMode.AUTO),
        ("containerd", "systemd", RestartMode.AUTO),
        ("docker", "NONE", RestartMode.NONE),
    ],
)
def test_a_restart_mode_is_what_an_engine_survives(engine: str, said: str, mode: RestartMode) -> None:
    assert _options(RUNTIME=engine, RUNTIME_RESTART_MODE=said).restart_mode is mode


@pytest.mark.parametrize(
    ("variables", "cdi"),
    [
        ({}, None),
        ({"CDI_ENABLED": "true", "CDI_OUTPUT_DIR": ""}, None),
        (
            {"CDI_ENABLED": "true"},
            Cdi(
                PurePosixPath("/var/run/cdi"),
                "management.nvidia.com/gpu",
                driver_root="/run/nvidia/driver",
                local_driver_root="/run/nvidia/driver",
                dev_root="/run/nvidia/driver",
                local_dev_root="/run/nvidia/driver",
                nodes=True,
            ),
        ),
        (
            {
                "ENABLE_CDI": "1",
                "CDI_KIND": "a.b/cd",
                "DRIVER_ROOT": "/",
                "DRIVER_ROOT_CTR_PATH": "/host",
                "DEV_ROOT": "/dev-root",
                "CREATE_DEVICE_NODES": "none",
            },
            Cdi(PurePosixPath("/var/run/cdi"), "a.b/cd", "/", "/host", "/dev-root", "/host", nodes=False),
        ),
    ],
    ids=["off", "no directory", "the defaults", "a driver on the host"],
)
def test_cdi_is_asked_for_as_nvidias_variables_say(variables: dict[str, str], cdi: Cdi | None) -> None:
    options = _options(**variables)

    assert options.cdi == cdi
    assert options.extras.cdi is (cdi is not None)


@pytest.mark.parametrize("said", ["control,none", "none,control", "control,"])
def test_device_nodes_are_made_where_nothing_else_is_said(said: str) -> None:
    cdi = _options(CDI_ENABLED="true", CREATE_DEVICE_NODES=said).cdi

    assert cdi is not None
    assert not cdi.nodes
