"""What our runtimes wrap: the engine's own default first, and never themselves or a machine."""

from collections.abc import Callable

import pytest

from installer.engines import ENGINES
from installer.model.engine_spec import is_oci, is_ours
from tests.observe.texts import NVIDIA, decided

CRI = 'plugins."io.containerd.grpc.v1.cri".containerd'


def docker(default: str = "", **paths: str) -> str:
    runtimes = ", ".join(f'"{name}": {{"path": "{path}"}}' for name, path in paths.items())
    return f'{{"default-runtime": "{default}", "runtimes": {{{runtimes}}}}}'


def containerd(default: str, kind: str = "io.containerd.runc.v2", **paths: str) -> str:
    tables = "".join(
        f'[{CRI}.runtimes.{name}]\nruntime_type = "{kind}"\noptions.BinaryName = "{path}"\n'
        for name, path in paths.items()
    )
    return f'version = 2\n[{CRI}]\ndefault_runtime_name = "{default}"\n{tables}'


def crio(default: str, kind: str = "oci", **paths: str) -> str:
    tables = "".join(
        f'[crio.runtime.runtimes.{name}]\nruntime_path = "{path}"\nruntime_type = "{kind}"\n'
        for name, path in paths.items()
    )
    return f'[crio.runtime]\ndefault_runtime = "{default}"\n{tables}'


WRITE = [
    pytest.param("docker", docker, id="docker"),
    pytest.param("containerd", containerd, id="containerd"),
    pytest.param("crio", crio, id="crio"),
]


@pytest.mark.parametrize(("engine", "write"), WRITE)
@pytest.mark.parametrize(
    ("default", "paths", "first"),
    [
        pytest.param("crun", {"crun": "/usr/bin/crun"}, ["/usr/bin/crun"], id="default"),
        pytest.param(
            *("own", {"crun": "/b/crun", "own": "/b/youki"}, ["/b/youki", "/b/crun"]),
            id="default ahead of crun",
        ),
        pytest.param(
            "own", {"own": "youki", "crun": "/b/crun"}, ["/b/crun", "youki"], id="a path ahead of a word"
        ),
        pytest.param("gpu", {"gpu": NVIDIA, "crun": "/b/crun"}, ["/b/crun"], id="ours by another name"),
        pytest.param(
            "gpu", {"gpu": "/opt/old/nvidia-container-runtime.cdi.real"}, [], id="ours of elsewhere"
        ),
        pytest.param("kata-qemu", {"kata-qemu": "/opt/kata/bin/qemu"}, [], id="a machine by its name"),
        pytest.param("crun", {"crun": "/usr/bin/krun"}, [], id="crun with a machine"),
    ],
)
def test_the_runtimes_to_wrap_are(
    engine: str, write: Callable[..., str], default: str, paths: dict[str, str], first: list[str]
) -> None:
    assert decided(engine, write(default, **paths)).low_level == (*first, "runc", "crun")


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        pytest.param("containerd", containerd("x", "io.containerd.kata.v2", x="/b/y"), id="containerd"),
        pytest.param("crio", crio("x", "vm", x="/b/y"), id="crio"),
        pytest.param(
            "docker",
            '{"default-runtime": "x", "runtimes": {"x": {"runtimeType": "io.containerd.kata.v2"}}}',
            id="docker",
        ),
        pytest.param("docker", '{"default-runtime": "io.containerd.kata.v2"}', id="docker without an entry"),
    ],
)
def test_a_machine_is_known_by_its_type_whatever_it_is_called(engine: str, text: str) -> None:
    assert decided(engine, text).low_level == ("runc", "crun")


@pytest.mark.parametrize(
    ("version", "first"),
    [
        pytest.param("1.30.4", "runc", id="runc before 1.31"),
        pytest.param("", "crun", id="crun where none runs"),
    ],
)
def test_crio_without_a_default_wraps_its_built_in_one(version: str, first: str) -> None:
    assert decided("crio", "", version=version).low_level[0] == first


def test_a_runtime_of_ours_is_known_by_its_binary_and_nothing_else_is_ours() -> None:
    ours = [
        f"nvidia-container-runtime{mode}{real}" for mode in ("", ".cdi", ".legacy") for real in ("", ".real")
    ]
    others = ["runc", "/usr/bin/crun", "/usr/bin/nvidia-container-cli", "", None, 3]

    assert all(is_ours(f"/anywhere/{name}") for name in ours)
    assert not any(map(is_ours, others))
    assert all(is_oci(name, f"/usr/bin/{name}") for name in ("youki", "catatonit", ""))


@pytest.mark.parametrize(
    ("version", "new"),
    [(None, True), ((1, 7, 29), False), ((2, 0), True)],
)
def test_which_engines_cannot_use_a_container_whose_runtime_is_gone(
    version: tuple[int, ...] | None, *, new: bool
) -> None:
    need = {name for name, spec in ENGINES.items() if spec.needs_handler(version)}

    assert need == (ENGINES.keys() - {"docker"} if new else {"crio", "k3s", "rke2"})
